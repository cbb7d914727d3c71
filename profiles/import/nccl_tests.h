// SPDX-License-Identifier: Apache-2.0
// Reads the tables that nccl-tests prints (all_gather_perf, reduce_scatter_perf, all_reduce_perf,
// broadcast_perf).
//
// Which program printed it is said by the line "# Collective test starting:" of newer versions or
// by the command in the log; without either it follows from the ratio of bus and algorithm
// bandwidth where that is unambiguous. Out-of-place and in-place columns are observations of their
// own; their times are averages over iterations in which no rank waits for another.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "profiles/observation.h"

namespace shardwright::profiles {

/// How many GPUs the fast link spans, which a log does not say: it lists hosts.
struct GpusOfNode {
  std::int64_t gpus = 0;  // 0: those of a host
  bool given = false;     // by a person; else the base's, which counts where no host has as many
};

/// Appends to `set`. The log may be packed with gzip. Throws Error when `path` cannot be read or
/// holds no row.
void read_nccl_tests(const std::filesystem::path& path, const GpusOfNode& node,
                     ObservationSet& set);

/// The text has a line that only nccl-tests prints.
bool looks_like_nccl_tests(std::string_view text);

}  // namespace shardwright::profiles
