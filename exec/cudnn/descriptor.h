// SPDX-License-Identifier: Apache-2.0
// A descriptor of cuDNN's C graph API that destroys itself, and the check around every call.
//
// The C API is used instead of NVIDIA's C++ front end: it comes with the library, needs no further
// package and compiles in a moment. Everything is a descriptor: it is created with a type, given
// attributes and finalized.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

namespace shardwright::exec::cudnn {

/// Throws Error with the call, its place and the library's own words when `status` is a failure.
void check(cudnnStatus_t status, const char* call, const char* file, int line);
#define SHARDWRIGHT_CUDNN(call) ::shardwright::exec::cudnn::check((call), #call, __FILE__, __LINE__)

class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }

  cudnnBackendDescriptor_t raw() const { return raw_; }

  template <class T>
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  std::span<const T> values) {
    set_raw(name, type, static_cast<std::int64_t>(values.size()), values.data());
    return *this;
  }
  template <class T>
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  const std::vector<T>& values) {
    return set(name, type, std::span<const T>(values));
  }
  template <class T>
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, T value) {
    return set(name, type, std::span<const T>(&value, 1));
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& other);
  Descriptor& finalize();

  std::int64_t get_int64(cudnnBackendAttributeName_t name) const;
  /// Descriptors of `type` that the library fills in, at most `most` of them.
  std::vector<Descriptor> get_descriptors(cudnnBackendAttributeName_t name,
                                          cudnnBackendDescriptorType_t type,
                                          std::int64_t most) const;

 private:
  void set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
               std::int64_t count, const void* values);

  cudnnBackendDescriptor_t raw_ = nullptr;
};

}  // namespace shardwright::exec::cudnn
