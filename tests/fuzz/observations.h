// SPDX-License-Identifier: Apache-2.0
// What holds for every observation, whatever file it is from.
#pragma once

#include "profiles/observation.h"
#include "sim/core/base/check.h"

namespace shardwright::fuzz {

inline void check_observations(const profiles::ObservationSet& set) {
  for (const profiles::Observation& seen : set.observations) {
    SHARDWRIGHT_CHECK(seen.seconds > 0, "{} s", seen.seconds);
    SHARDWRIGHT_CHECK(seen.contended >= 0 && seen.contended <= 1, "contended {}", seen.contended);
    SHARDWRIGHT_CHECK(seen.ranks >= 1 && seen.nodes >= 1, "{} ranks, {} nodes", seen.ranks,
                      seen.nodes);
    SHARDWRIGHT_CHECK(seen.source < static_cast<std::int32_t>(set.sources.size()), "source {}",
                      seen.source);
    SHARDWRIGHT_CHECK(seen.unit < static_cast<std::int32_t>(set.units.size()), "unit {}",
                      seen.unit);
  }
}

}  // namespace shardwright::fuzz
