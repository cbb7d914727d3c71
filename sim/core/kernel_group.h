// SPDX-License-Identifier: Apache-2.0
// The memory-bound kernels that a framework runs for one operation.
#pragma once

#include <vector>

namespace shardwright {

/// Per element of the operation.
struct KernelGroup {
  double forward_bytes = 0;  // HBM traffic per element
  double backward_bytes = 0;
  int forward_kernels = 1;
  int backward_kernels = 1;
  double forward_efficiency = 1;  // of the GPU's streaming bandwidth
  double backward_efficiency = 1;
  std::vector<double> saved_bytes;     // per element, one entry for each tensor kept for backward
                                       // besides inputs and outputs
  double saved_bytes_per_token = 0;    // small statistics (mean, rstd)
  double forward_temporary_bytes = 0;  // per element, alive only while the operation runs
  double backward_temporary_bytes = 0;
};

}  // namespace shardwright
