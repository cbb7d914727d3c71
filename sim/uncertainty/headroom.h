// SPDX-License-Identifier: Apache-2.0
// How much memory a plan should leave so that it runs out of it in one case of ten at most.
#pragma once

#include <cstdint>

#include "profiles/profile.h"

namespace shardwright::sim {

/// As a share of what a rank may use of its device, when `ranks` train together: plans that leave
/// it have the verdict "fits". 0 where no interval of memory is known.
double asked_headroom(const profiles::Profile& profile, std::int64_t ranks);

}  // namespace shardwright::sim
