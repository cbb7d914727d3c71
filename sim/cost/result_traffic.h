// SPDX-License-Identifier: Apache-2.0
// Products whose result is wider than their operands, or added to what is there: Work::bytes is
// then the HBM traffic of one, which it cannot be quicker than on a GPU.
#pragma once

#include <algorithm>

#include "sim/cost/work_time.h"

namespace shardwright::sim {

/// `seconds` of the work, or what its traffic takes where that is more. A core reads what it adds
/// to when it is through with a tile's products, and nothing hides that.
inline double with_result_traffic(const KernelCosts& costs, const Work& work, double seconds) {
  if (work.kind != WorkKind::kGemm || work.bytes == 0) return seconds;
  const double hbm = costs.rates.hbm_bytes_per_s * costs.rates.hbm_efficiency;
  if (costs.rates.processor) {
    const std::int64_t own =
        work.dtype_bytes * work.k * (work.m + work.n) + bytes_of(DType::kFp32) * work.m * work.n;
    return seconds +
           work.kernels * static_cast<double>(std::max<std::int64_t>(0, work.bytes - own)) / hbm;
  }
  const double least = costs.gemm.t0_s + static_cast<double>(work.bytes) / hbm;
  return std::max(seconds, work.kernels * least);
}

}  // namespace shardwright::sim
