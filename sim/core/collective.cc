// SPDX-License-Identifier: Apache-2.0
#include "sim/core/collective.h"

#include <array>
#include <cstddef>

namespace shardwright {

std::string_view name_of(Collective collective) {
  constexpr std::array<std::string_view, 4> kNames{"all_gather", "reduce_scatter", "all_reduce",
                                                   "broadcast"};
  return kNames[static_cast<std::size_t>(collective)];
}

}  // namespace shardwright
