// SPDX-License-Identifier: Apache-2.0
#include "sim/uncertainty/headroom.h"

#include <algorithm>

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
  const double shrink = -portable_expm1(-kTenthBeyond * memory_widths(profile).more);
  return shrink > 0 ? std::min(0.99, (framework * shrink + kByte) / usable) : 0;
}

}  // namespace shardwright::sim
