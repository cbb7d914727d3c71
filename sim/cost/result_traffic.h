// SPDX-License-Identifier: Apache-2.0
// Products whose result is wider than their operands, or added to what is there: Work::bytes is
// then the HBM traffic of one, which it cannot be quicker than.
#pragma once

#include <algorithm>

#include "sim/cost/work_time.h"

namespace shardwright::sim {

/// `seconds` of the work, or what its traffic takes where that is more.
inline double with_result_traffic(const KernelCosts& costs, const Work& work, double seconds) {
  if (work.kind != WorkKind::kGemm || work.bytes == 0) return seconds;
  const double hbm = costs.rates.hbm_bytes_per_s * costs.rates.hbm_efficiency;
  const double least = costs.gemm.t0_s + static_cast<double>(work.bytes) / hbm;
  return std::max(seconds, work.kernels * least);
}

}  // namespace shardwright::sim
