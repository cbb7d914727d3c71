// SPDX-License-Identifier: Apache-2.0
#include "exec/cudnn/descriptor.h"

#include <fmt/core.h>

#include <array>
#include <string>

#include "sim/core/base/error.h"

namespace shardwright::exec::cudnn {

void check(cudnnStatus_t status, const char* call, const char* file, int line) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 2048> text{};
  cudnnGetLastErrorString(text.data(), text.size());
  throw Error(fmt::format("{} failed at {}:{} with {}: {}", call, file, line,
                          cudnnGetErrorString(status), text.data()),
              ExitCode::kFailed);
}

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  SHARDWRIGHT_CUDNN(cudnnBackendCreateDescriptor(type, &raw_));
}

Descriptor::~Descriptor() {
  if (raw_ != nullptr) cudnnBackendDestroyDescriptor(raw_);
}

void Descriptor::set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                         std::int64_t count, const void* values) {
  SHARDWRIGHT_CUDNN(cudnnBackendSetAttribute(raw_, name, type, count, values));
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, const Descriptor& other) {
  return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, other.raw());
}

Descriptor& Descriptor::finalize() {
  SHARDWRIGHT_CUDNN(cudnnBackendFinalize(raw_));
  return *this;
}

std::int64_t Descriptor::get_int64(cudnnBackendAttributeName_t name) const {
  std::int64_t value = 0, count = 0;
  SHARDWRIGHT_CUDNN(cudnnBackendGetAttribute(raw_, name, CUDNN_TYPE_INT64, 1, &count, &value));
  return value;
}

std::vector<Descriptor> Descriptor::get_descriptors(cudnnBackendAttributeName_t name,
                                                    cudnnBackendDescriptorType_t type,
                                                    std::int64_t most) const {
  std::vector<Descriptor> result;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < most; ++i) raw.push_back(result.emplace_back(type).raw());
  std::int64_t count = 0;
  SHARDWRIGHT_CUDNN(cudnnBackendGetAttribute(raw_, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, most,
                                             &count, raw.data()));
  while (std::ssize(result) > count) result.pop_back();
  return result;
}

}  // namespace shardwright::exec::cudnn
