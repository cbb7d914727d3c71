// SPDX-License-Identifier: Apache-2.0
#include "sim/core/collective.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace shardwright {

std::string_view name_of(Collective collective) {
  constexpr std::array<std::string_view, 4> kNames{"all_gather", "reduce_scatter", "all_reduce",
                                                   "broadcast"};
  return kNames[static_cast<std::size_t>(collective)];
}

double distinct_places(std::int64_t experts, std::int64_t per_token, std::int64_t places) {
  const double here = static_cast<double>(experts) / static_cast<double>(places);
  double none = 1;  // of the experts of one place is chosen
  for (std::int64_t i = 0; i < per_token; ++i) {
    none *=
        std::max(0.0, static_cast<double>(experts - i) - here) / static_cast<double>(experts - i);
  }
  return static_cast<double>(places) * (1 - none);
}

}  // namespace shardwright
