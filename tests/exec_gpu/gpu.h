// SPDX-License-Identifier: Apache-2.0
// What tests on a GPU share: whether there is one, and ranks with devices of their own.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>

/// Skips the test with the reason when there is no GPU to run it on.
#define SHARDWRIGHT_NEEDS_GPU()                                 \
  do {                                                          \
    int devices = 0;                                            \
    const cudaError_t status = cudaGetDeviceCount(&devices);    \
    if (status != cudaSuccess || devices == 0) {                \
      GTEST_SKIP() << "no GPU: " << cudaGetErrorString(status); \
    }                                                           \
  } while (false)

namespace shardwright::exec::testing {

/// 1, 2 or 4: what NCCL can connect here, one rank a GPU.
inline int ranks_with_gpus() {
  int devices = 0;
  cudaGetDeviceCount(&devices);
  return devices >= 4 ? 4 : devices >= 2 ? 2 : 1;
}

}  // namespace shardwright::exec::testing
