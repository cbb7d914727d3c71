// SPDX-License-Identifier: Apache-2.0
// CUPTI by its first call.
#include <cupti.h>

#include "exec/libraries/loaded_library.h"

namespace {

shardwright::exec::libraries::LoadedLibrary cupti_library("CUPTI", SHARDWRIGHT_CUPTI_FILE,
                                                          SHARDWRIGHT_CUPTI_FOLDER);

}  // namespace

extern "C" {

CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  SHARDWRIGHT_PASS_ON(cupti_library, cuptiActivityDisable, kind);
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  SHARDWRIGHT_PASS_ON(cupti_library, cuptiActivityEnable, kind);
}
CUptiResult cuptiActivityFlushAll(uint32_t flag) {
  SHARDWRIGHT_PASS_ON(cupti_library, cuptiActivityFlushAll, flag);
}
CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t validBufferSizeBytes,
                                       CUpti_Activity** record) {
  SHARDWRIGHT_PASS_ON(cupti_library, cuptiActivityGetNextRecord, buffer, validBufferSizeBytes,
                      record);
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t streamId,
                                              size_t* dropped) {
  SHARDWRIGHT_PASS_ON(cupti_library, cuptiActivityGetNumDroppedRecords, context, streamId, dropped);
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind,
                                                  uint64_t* lastId) {
  SHARDWRIGHT_PASS_ON(cupti_library, cuptiActivityPopExternalCorrelationId, kind, lastId);
}
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind,
                                                   uint64_t id) {
  SHARDWRIGHT_PASS_ON(cupti_library, cuptiActivityPushExternalCorrelationId, kind, id);
}
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc funcBufferRequested,
                                           CUpti_BuffersCallbackCompleteFunc funcBufferCompleted) {
  SHARDWRIGHT_PASS_ON(cupti_library, cuptiActivityRegisterCallbacks, funcBufferRequested,
                      funcBufferCompleted);
}
CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t cbid, const char** name) {
  SHARDWRIGHT_PASS_ON(cupti_library, cuptiGetCallbackName, domain, cbid, name);
}
CUptiResult cuptiGetDeviceId(CUcontext context, uint32_t* deviceId) {
  SHARDWRIGHT_PASS_ON(cupti_library, cuptiGetDeviceId, context, deviceId);
}
CUptiResult cuptiGetErrorMessage(CUptiResult result, const char** str) {
  SHARDWRIGHT_PASS_ON(cupti_library, cuptiGetErrorMessage, result, str);
}
CUptiResult cuptiGetResultString(CUptiResult result, const char** str) {
  SHARDWRIGHT_PASS_ON(cupti_library, cuptiGetResultString, result, str);
}
CUptiResult cuptiGetStreamIdEx(CUcontext context, CUstream stream, uint8_t perThreadStream,
                               uint32_t* streamId) {
  SHARDWRIGHT_PASS_ON(cupti_library, cuptiGetStreamIdEx, context, stream, perThreadStream,
                      streamId);
}
CUptiResult cuptiGetTimestamp(uint64_t* timestamp) {
  SHARDWRIGHT_PASS_ON(cupti_library, cuptiGetTimestamp, timestamp);
}
CUptiResult cuptiGetVersion(uint32_t* version) {
  SHARDWRIGHT_PASS_ON(cupti_library, cuptiGetVersion, version);
}
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc callback,
                           void* userdata) {
  SHARDWRIGHT_PASS_ON(cupti_library, cuptiSubscribe, subscriber, callback, userdata);
}
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle subscriber) {
  SHARDWRIGHT_PASS_ON(cupti_library, cuptiUnsubscribe, subscriber);
}

}  // extern "C"
