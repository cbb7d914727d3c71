// SPDX-License-Identifier: Apache-2.0
// Which GPU kind of the profiles a device is, by what a driver or a trace says of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/core/cluster.h"
#include "sim/core/units.h"

namespace shardwright::profiles {

struct SeenGpu {
  std::string name;  // "NVIDIA H200"
  std::int64_t multiprocessors = 0;
  Bytes memory_bytes = 0;
};

/// The kind that this is, by a word of its name, its multiprocessors and its memory; none when no
/// kind or several fit.
std::optional<Gpu> known_gpu(const SeenGpu& seen);

}  // namespace shardwright::profiles
