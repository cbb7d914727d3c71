// SPDX-License-Identifier: Apache-2.0
// Time of a memory-bound kernel: t1 + bytes / (share of HBM bandwidth).
//
// Streaming kernels reach 0.8-0.9 of the data-sheet bandwidth; each framework's kernel reaches its
// own share of that (`efficiency`). What fits in L2 is faster: the share of the speed-up falls
// linearly to zero as the footprint grows to the size of L2. Left out: launch gaps of the host,
// access patterns (they belong in `efficiency`).
#pragma once

#include "profiles/gpu_params.h"

namespace shardwright::sim {

/// What traffic beside a kernel takes of the streaming bandwidth, and the share that is left in any
/// case.
struct TakenBandwidth {
  double bytes_per_s = 0;
  double least_share_left = 1;
};

/// Seconds for a kernel that moves `bytes` to or from memory. `efficiency` is relative to
/// params.stream_efficiency. No bytes, no time. Never falls when bytes grow.
double memory_time_s(const profiles::MemoryParams& params, const profiles::GpuRates& gpu,
                     double bytes, double efficiency = 1, const TakenBandwidth& taken = {});

}  // namespace shardwright::sim
