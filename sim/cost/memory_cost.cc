// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/memory_cost.h"

#include <algorithm>

namespace shardwright::sim {

double memory_time_s(const profiles::MemoryParams& params, const profiles::GpuRates& gpu,
                     double bytes, double efficiency, const TakenBandwidth& taken) {
  if (bytes <= 0) return 0;
  const double full = gpu.hbm_bytes_per_s * params.stream_efficiency;
  const double rate =
      std::max(full - taken.bytes_per_s, taken.least_share_left * full) * efficiency;
  double resident = 0;
  if (gpu.l2_bytes > 0) resident = std::max(0.0, 1 - bytes / gpu.l2_bytes);
  // Growing in `bytes` for every speed-up: d/dy [y (1 - q (1 - y))] = 1 - q + 2 q y > 0.
  return params.t1_s + bytes / rate * (1 - (1 - 1 / params.l2_speedup) * resident);
}

}  // namespace shardwright::sim
