// SPDX-License-Identifier: Apache-2.0
#include "sim/uncertainty/headroom.h"

#include <algorithm>

#include "profiles/uncertainty/model_parallel_uncertainty.h"
#include "sim/core/base/portable_math.h"
#include "sim/uncertainty/memory_uncertainty.h"

namespace shardwright::sim {

double asked_headroom(const profiles::Profile& profile, std::int64_t ranks) {
  const auto usable = static_cast<double>(profile.cluster.memory_bytes_per_rank(ranks));
  const double framework =
      std::max(0.0, usable - static_cast<double>(profile.cluster.gpu.runtime_bytes));
  if (usable <= 0) return 0;
  // What is needed is rounded to bytes.
  constexpr double kByte = 1;
  const double model_parallel = profiles::model_parallel_uncertainty().memory_half_width;
  const double half_width = profile.stack.parallel.megatron && model_parallel > 0
                                ? model_parallel
                                : memory_widths(profile).more;
  const double shrink = -portable_expm1(-kTenthBeyond * half_width);
  return shrink > 0 ? std::min(0.99, (framework * shrink + kByte) / usable) : 0;
}

}  // namespace shardwright::sim
