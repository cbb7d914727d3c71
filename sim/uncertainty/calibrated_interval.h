// SPDX-License-Identifier: Apache-2.0
// The interval of a step's time on a calibrated profile.
//
// Each group of costs that was calibrated brings its own half width: how far the total of the
// group's operations was off in fits that had not seen them (sim/calibrate/group_errors.h). A
// step's time is made of its kernels by group, of collectives that nothing hides, and of the host;
// the half width of the step is that of its parts, weighted by time, as if all were off in the same
// direction. Parts that nobody measured keep the half width of published runs
// (sim/uncertainty/conformal.h).
#pragma once

#include "profiles/profile.h"
#include "sim/engine/host_regime.h"

namespace shardwright::sim {

/// What a step spends its time in, in seconds.
struct StepShares {
  double total_s = 0;
  double exposed_s = 0;  // waits for collectives
  double host_s = 0;     // waits for the host
};

/// `published` is the half width by published runs. The same when no group is calibrated.
double calibrated_half_width(const profiles::Profile& profile, const KernelTimes& kernels,
                             const StepShares& shares, double published);

}  // namespace shardwright::sim
