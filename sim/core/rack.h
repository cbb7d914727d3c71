// SPDX-License-Identifier: Apache-2.0
// Racks that NVLink joins (NVL72), and how a job fills them.
//
// A scheduler hands out compute trays of four GPUs (GB200 and GB300 NVL72: 18 trays a rack), and a
// job on several racks takes as many GPUs of each, so that no group of ranks is cut by the end of a
// rack: 1,024 GPUs are 16 racks with 64 of 72 GPUs each, as published runs have it (NVIDIA
// dgxc-benchmarking, MLPerf Training 5.1). Where no equal number of whole trays between half a rack
// and a rack divides the GPUs, racks are filled as evenly as trays allow and the last one holds the
// rest.
#pragma once

#include <cstdint>

#include "sim/core/cluster.h"

namespace shardwright {

inline constexpr std::int64_t kGpusPerTray = 4;

/// Whether as many GPUs as NVLink joins are more than one board carries.
bool is_rack(std::int64_t nvlink_gpus);

/// GPUs that NVLink joins: a node's, or a rack's.
std::int64_t nvlink_gpus(const Cluster& cluster);

/// GPUs of each rack of `rack` GPUs that a job of `gpus` takes. Groups of `unit` neighbours are
/// kept whole where that is possible.
std::int64_t gpus_of_each_rack(std::int64_t gpus, std::int64_t rack, std::int64_t unit = 1);

/// The cluster as a job of `gpus` finds it: racks that it fills in part are nodes of that part.
Cluster filled(Cluster cluster, std::int64_t gpus);

}  // namespace shardwright
