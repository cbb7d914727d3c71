// SPDX-License-Identifier: Apache-2.0
// Tests of the CUDA device run twice: on the processor, against the runtime of
// tests/support/cuda_on_cpu, and on a GPU, where they skip themselves when there is none.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "exec/cuda/cuda_device.h"
#ifdef SHARDWRIGHT_CUDA_ON_CPU
#include "tests/support/cuda_on_cpu/fake_cuda.h"
#else
#include "exec/cuda/gpus.h"
#endif

namespace shardwright::exec::testing {

#ifdef SHARDWRIGHT_CUDA_ON_CPU
inline constexpr bool kEmulated = true;
#else
inline constexpr bool kEmulated = false;
#endif

/// Another allowed order of streams from now on; on a GPU the order is its own.
inline void use_order(std::uint64_t seed) {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  cuda_on_cpu::FakeMachine machine;
  machine.seed = seed;
  cuda_on_cpu::reset(machine);
#else
  static_cast<void>(seed);
#endif
}

/// Empty where there is one, emulated or not.
inline std::string why_no_gpu() {
#ifdef SHARDWRIGHT_CUDA_ON_CPU
  return "";
#else
  const cuda::Gpus gpus = cuda::find_gpus();
  return gpus.usable.empty() ? gpus.problem : "";
#endif
}

template <class Base>
class OnCuda : public Base {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    use_order(1);
  }
};

/// Attention that serves every type and size.
inline std::unique_ptr<CudaDevice> naive_device() {
  CudaDeviceOptions options;
  options.attention = "naive";
  return std::make_unique<CudaDevice>(options);
}

}  // namespace shardwright::exec::testing
