// SPDX-License-Identifier: Apache-2.0
// Which GPU kind of the profiles a device is, by what a driver or a trace says of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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

/// Whether a driver's name is that of the kind `id`, as far as names tell: "NVIDIA A100-SXM4-80GB"
/// of a100-80g, not of a100-40g.
bool is_named_as(std::string_view name, const std::string& id);

/// The only kind of the profiles with that name, or "".
std::string kind_named(std::string_view name);

}  // namespace shardwright::profiles
