// SPDX-License-Identifier: Apache-2.0
// Launching kernels: the same line for a GPU and for the emulation that tests run on the processor
// (tests/support/cuda_on_cpu). For .cu files only.
//
// What plain CUDA writes as syntax that no C++ compiler reads has a function here: <<<>>> is
// launch(), extern __shared__ is dynamic_shared().
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels/cuda/cuda_error.h"

namespace shardwright::kernels::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;  // dynamic ones
  std::source_location where = std::source_location::current();
};

/// Shared memory of a block beyond this many bytes must be asked for.
inline constexpr std::size_t kSharedBytesByDefault = 48 * 1024;

#ifdef SHARDWRIGHT_CUDA_ON_CPU

/// Enqueues the kernel; arguments are copied. Throws Error when CUDA refuses the launch.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
            Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments));
  std::tuple<std::decay_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  check_cuda(cuda_on_cpu::enqueue(
                 stream, {shape.where.function_name(), shape.grid, shape.block, shape.shared_bytes,
                          [kernel, values] { std::apply(kernel, values); },
                          reinterpret_cast<const void*>(kernel), cuda_on_cpu::bytes_of(values)}),
             "kernel launch", shape.where);
}

/// The block's dynamic shared memory, aligned to 128 bytes.
template <class T>
T* dynamic_shared() {
  return static_cast<T*>(cuda_on_cpu::shared_memory());
}

#else

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
            Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments));
  const void* function = reinterpret_cast<const void*>(kernel);
  if (shape.shared_bytes > kSharedBytesByDefault) {
    check_cuda(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shape.shared_bytes)),
               "cudaFuncSetAttribute", shape.where);
  }
  std::tuple<std::decay_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  const cudaError_t status = std::apply(
      [&](auto&... value) {
        // One more, because a kernel may have no arguments.
        void* pointers[] = {static_cast<void*>(&value)..., nullptr};
        return cudaLaunchKernel(function, shape.grid, shape.block, pointers, shape.shared_bytes,
                                stream);
      },
      values);
  check_cuda(status, "kernel launch", shape.where);
}

template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char shardwright_dynamic_shared[];
  return reinterpret_cast<T*>(shardwright_dynamic_shared);
}

#endif

}  // namespace shardwright::kernels::cuda
