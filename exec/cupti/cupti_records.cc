// SPDX-License-Identifier: Apache-2.0
#include "exec/cupti/cupti_records.h"

#include <fmt/core.h>

#include <string>

namespace shardwright::exec {
namespace {

const char* memory_name(std::uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE:
      return "pageable";
    case CUPTI_ACTIVITY_MEMORY_KIND_PINNED:
      return "pinned";
    case CUPTI_ACTIVITY_MEMORY_KIND_DEVICE:
      return "device";
    case CUPTI_ACTIVITY_MEMORY_KIND_MANAGED:
      return "managed";
    default:
      return "memory";
  }
}

const char* overhead_name(CUpti_ActivityOverheadKind kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_OVERHEAD_DRIVER_COMPILER:
      return "compiler";
    case CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH:
      return "buffer flush";
    case CUPTI_ACTIVITY_OVERHEAD_CUPTI_INSTRUMENTATION:
      return "instrumentation";
    case CUPTI_ACTIVITY_OVERHEAD_CUPTI_RESOURCE:
      return "resources";
    default:
      return "overhead";
  }
}

const char* wait_name(CUpti_ActivitySynchronizationType type) {
  switch (type) {
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE:
      return "host waits for an event";
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT:
      return "stream waits for an event";
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE:
      return "host waits for a stream";
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE:
      return "host waits for the device";
    default:
      return "wait";
  }
}

Activity on_device(ActivityKind kind, std::string name, std::uint64_t begin, std::uint64_t end,
                   std::uint32_t correlation, std::uint32_t stream, std::uint64_t bytes) {
  Activity activity;
  activity.kind = kind;
  activity.name = std::move(name);
  activity.begin_ns = begin;
  activity.end_ns = end;
  activity.correlation = correlation;
  activity.stream = stream;
  activity.bytes = bytes;
  return activity;
}

Activity call_of(const CUpti_ActivityAPI& record) {
  const CUpti_CallbackDomain domain = record.kind == CUPTI_ACTIVITY_KIND_RUNTIME
                                          ? CUPTI_CB_DOMAIN_RUNTIME_API
                                          : CUPTI_CB_DOMAIN_DRIVER_API;
  const char* name = nullptr;
  const bool known =
      cuptiGetCallbackName(domain, record.cbid, &name) == CUPTI_SUCCESS && name != nullptr;
  Activity activity;
  activity.kind = ActivityKind::kCall;
  activity.name = known ? name
                        : fmt::format("call {} of the {}", record.cbid,
                                      domain == CUPTI_CB_DOMAIN_RUNTIME_API ? "runtime" : "driver");
  activity.begin_ns = record.start;
  activity.end_ns = record.end;
  activity.correlation = record.correlationId;
  activity.thread = record.threadId;
  return activity;
}

void read_record(const CUpti_Activity& record, ActivityLog& log) {
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = reinterpret_cast<const CuptiKernel&>(record);
      log.activities.push_back(
          on_device(ActivityKind::kKernel, kernel.name != nullptr ? kernel.name : "unnamed kernel",
                    kernel.start, kernel.end, kernel.correlationId, kernel.streamId, 0));
      log.activities.back().device = kernel.deviceId;
      return;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = reinterpret_cast<const CuptiCopy&>(record);
      log.activities.push_back(on_device(
          ActivityKind::kCopy,
          fmt::format("copy {} to {}", memory_name(copy.srcKind), memory_name(copy.dstKind)),
          copy.start, copy.end, copy.correlationId, copy.streamId, copy.bytes));
      log.activities.back().device = copy.deviceId;
      return;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
      const auto& copy = reinterpret_cast<const CuptiPeerCopy&>(record);
      log.activities.push_back(
          on_device(ActivityKind::kCopy,
                    fmt::format("copy GPU {} to GPU {}", copy.srcDeviceId, copy.dstDeviceId),
                    copy.start, copy.end, copy.correlationId, copy.streamId, copy.bytes));
      log.activities.back().device = copy.deviceId;
      return;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& set = reinterpret_cast<const CuptiSet&>(record);
      log.activities.push_back(on_device(ActivityKind::kSet, "set", set.start, set.end,
                                         set.correlationId, set.streamId, set.bytes));
      log.activities.back().device = set.deviceId;
      return;
    }
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
      log.activities.push_back(call_of(reinterpret_cast<const CUpti_ActivityAPI&>(record)));
      return;
    case CUPTI_ACTIVITY_KIND_OVERHEAD: {
      const auto& overhead = reinterpret_cast<const CuptiOverhead&>(record);
      log.activities.push_back(on_device(ActivityKind::kOverhead,
                                         overhead_name(overhead.overheadKind), overhead.start,
                                         overhead.end, 0, 0, 0));
      return;
    }
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: {
      const auto& wait = reinterpret_cast<const CuptiWait&>(record);
      log.activities.push_back(on_device(ActivityKind::kWait, wait_name(wait.type), wait.start,
                                         wait.end, wait.correlationId, wait.streamId, 0));
      return;
    }
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
      const auto& external = reinterpret_cast<const CUpti_ActivityExternalCorrelation&>(record);
      if (external.externalKind == kExternalKind) {
        log.tags[external.correlationId] = external.externalId;
      }
      return;
    }
    default:
      ++log.unread;
  }
}

}  // namespace

void read_records(std::uint8_t* buffer, std::size_t bytes, ActivityLog& log) {
  if (buffer == nullptr || bytes == 0) return;
  CUpti_Activity* record = nullptr;
  CUptiResult status = CUPTI_SUCCESS;
  while ((status = cuptiActivityGetNextRecord(buffer, bytes, &record)) == CUPTI_SUCCESS) {
    read_record(*record, log);
  }
  if (status != CUPTI_ERROR_MAX_LIMIT_REACHED) ++log.unread;
}

}  // namespace shardwright::exec
