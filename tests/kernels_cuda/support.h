// SPDX-License-Identifier: Apache-2.0
// What the tests of CUDA kernels share beside tests/kernels/support.h: arrays on the device, and
// runs that must give the same bits whatever the order of threads. Compiled for a GPU and, against
// the headers in tests/support/cuda_on_cpu, for the processor.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_error.h"
#include "tests/kernels/support.h"
#ifdef SHARDWRIGHT_CUDA_ON_CPU
#include "tests/support/cuda_on_cpu/fake_cuda.h"
#endif

namespace shardwright::kernels::testing {

/// An array in device memory, `offset` elements behind an address that is a multiple of 256 bytes.
/// Around it lies what a kernel must not touch.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values, std::int64_t offset = 0)
      : count_(values.size()), offset_(static_cast<std::size_t>(offset)) {
    SHARDWRIGHT_CUDA(cudaMalloc(reinterpret_cast<void**>(&base_), bytes()));
    SHARDWRIGHT_CUDA(cudaMemsetAsync(base_, kAround, bytes(), nullptr));
    if (count_ == 0) return;
    SHARDWRIGHT_CUDA(cudaMemcpy(data(), values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  /// `count` elements that hold NaNs.
  explicit OnDevice(std::int64_t count, std::int64_t offset = 0) : OnDevice(nans(count), offset) {}
  OnDevice(OnDevice&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), count_(other.count_), offset_(other.offset_) {}
  OnDevice& operator=(OnDevice&&) = delete;
  ~OnDevice() { cudaFree(base_); }

  T* data() const { return base_ + offset_; }
  /// Waits for the default stream; checks what lies around the array.
  std::vector<T> get() const {
    const std::unique_ptr<unsigned char[]> all(new unsigned char[bytes()]);
    SHARDWRIGHT_CUDA(cudaMemcpy(all.get(), base_, bytes(), cudaMemcpyDeviceToHost));
    const std::size_t begin = offset_ * sizeof(T), end = begin + count_ * sizeof(T);
    for (std::size_t at = 0; at < bytes(); ++at) {
      if (at >= begin && at < end) continue;
      EXPECT_EQ(all[at], kAround) << "byte " << at << " outside the array at " << begin << ".."
                                  << end;
    }
    std::vector<T> values(count_);
    if (count_ == 0) return values;
    SHARDWRIGHT_CUDA(cudaMemcpy(values.data(), data(), count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  static constexpr unsigned char kAround = 0x5a;
  static std::vector<T> nans(std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, BFloat16>) {
      values = poisoned<T>(count);
    } else if (count > 0) {
      std::memset(values.data(), 0x7f, values.size() * sizeof(T));
    }
    return values;
  }
  std::size_t bytes() const { return (offset_ + count_) * sizeof(T) + 64; }

  T* base_ = nullptr;
  std::size_t count_, offset_;
};

/// Empty where there is one, emulated or not.
inline std::string why_no_gpu() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaSuccess && devices > 0) return "";
  cudaGetLastError();
  return std::string("no GPU: ") + cudaGetErrorString(status);
}

/// Skips with the reason when there is no GPU.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }
};

/// Kernels that the fake runtime has seen; a GPU's does not tell.
#ifdef SHARDWRIGHT_CUDA_ON_CPU
inline constexpr bool kEmulated = true;
inline std::int64_t kernels_launched() {
  const auto log = cuda_on_cpu::call_log();
  return std::count_if(log.begin(), log.end(), [](const cuda_on_cpu::Call& call) {
    return call.kind == cuda_on_cpu::CallKind::kKernel;
  });
}
#else
inline constexpr bool kEmulated = false;
inline std::int64_t kernels_launched() {
  return 0;
}
#endif

/// Runs compute(), which returns Outputs, with threads and blocks in several orders (on a GPU:
/// several times), expects the same bits, and returns them.
template <class Compute>
auto in_every_order(Compute compute) {
  const auto result = compute();
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  for (const std::uint64_t seed : {1, 2}) {
    cuda_on_cpu::set_options({seed});
    EXPECT_TRUE(result == compute()) << "with threads in the order of seed " << seed;
  }
  cuda_on_cpu::set_options({0});
#else
  for (int repeat = 0; repeat < 3; ++repeat) EXPECT_TRUE(result == compute()) << "run again";
#endif
  return result;
}

}  // namespace shardwright::kernels::testing
