// SPDX-License-Identifier: Apache-2.0
// cuDNN by its first call.
#include <cudnn.h>

#include "exec/libraries/loaded_library.h"

namespace {

shardwright::exec::libraries::LoadedLibrary cudnn_library("cuDNN", SHARDWRIGHT_CUDNN_FILE,
                                                          SHARDWRIGHT_CUDNN_FOLDER,
                                                          "libcudnn_graph.so.9");

}  // namespace

extern "C" {

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t descriptorType,
                                           cudnnBackendDescriptor_t* descriptor) {
  SHARDWRIGHT_PASS_ON(cudnn_library, cudnnBackendCreateDescriptor, descriptorType, descriptor);
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  SHARDWRIGHT_PASS_ON(cudnn_library, cudnnBackendDestroyDescriptor, descriptor);
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t executionPlan,
                                  cudnnBackendDescriptor_t variantPack) {
  SHARDWRIGHT_PASS_ON(cudnn_library, cudnnBackendExecute, handle, executionPlan, variantPack);
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  SHARDWRIGHT_PASS_ON(cudnn_library, cudnnBackendFinalize, descriptor);
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                       cudnnBackendAttributeName_t attributeName,
                                       cudnnBackendAttributeType_t attributeType,
                                       int64_t requestedElementCount, int64_t* elementCount,
                                       void* arrayOfElements) {
  SHARDWRIGHT_PASS_ON(cudnn_library, cudnnBackendGetAttribute, descriptor, attributeName,
                      attributeType, requestedElementCount, elementCount, arrayOfElements);
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t attributeName,
                                       cudnnBackendAttributeType_t attributeType,
                                       int64_t elementCount, const void* arrayOfElements) {
  SHARDWRIGHT_PASS_ON(cudnn_library, cudnnBackendSetAttribute, descriptor, attributeName,
                      attributeType, elementCount, arrayOfElements);
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  SHARDWRIGHT_PASS_ON(cudnn_library, cudnnCreate, handle);
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  SHARDWRIGHT_PASS_ON(cudnn_library, cudnnDestroy, handle);
}
size_t cudnnGetCudartVersion() {
  SHARDWRIGHT_PASS_ON(cudnn_library, cudnnGetCudartVersion);
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
  SHARDWRIGHT_PASS_ON(cudnn_library, cudnnGetErrorString, status);
}
void cudnnGetLastErrorString(char* message, size_t max_size) {
  SHARDWRIGHT_PASS_ON(cudnn_library, cudnnGetLastErrorString, message, max_size);
}
size_t cudnnGetVersion() {
  SHARDWRIGHT_PASS_ON(cudnn_library, cudnnGetVersion);
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t streamId) {
  SHARDWRIGHT_PASS_ON(cudnn_library, cudnnSetStream, handle, streamId);
}

}  // extern "C"
