// SPDX-License-Identifier: Apache-2.0
// What the host costs: launches forward and backward, and what a step adds to its operations.
//
// These are sums of many small times, so their mean matters, and each is measured by itself: no
// curve is fitted. A value is determined by five timings.
#pragma once

#include <vector>

#include "sim/calibrate/fit_group.h"

namespace shardwright::sim {

/// Sets stack.host.* of `profile` where `rows` measure them. `rows` may be of any group.
GroupFit fit_host(EditableProfile& profile, const std::vector<profiles::MeasuredRow>& rows);

}  // namespace shardwright::sim
