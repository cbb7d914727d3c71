// SPDX-License-Identifier: Apache-2.0
// What a fit of a group compares: rows' times, or times beside a collective over times alone.
#pragma once

#include <vector>

#include "profiles/calibration.h"
#include "profiles/profile.h"
#include "sim/cost/work_time.h"

namespace shardwright::sim {

struct Target {
  profiles::MeasuredRow row;
  double measured = 0;
  bool ratio = false;  // `measured` is the row's time over its time alone
  double noise = 0;    // of the logarithm of `measured`
};

/// Rows of the group as targets. Kernels that were also timed alone are left out where contended;
/// those pairs are the targets of the group contention.
std::vector<Target> targets_of(const std::vector<profiles::MeasuredRow>& rows,
                               profiles::CostGroup group);

/// log(predicted / measured) of every target.
std::vector<double> log_errors(const profiles::Profile& profile, const std::vector<Target>& targets,
                               const Sharing& sharing);
/// Of those of `targets` that `which` names.
std::vector<double> log_errors(const profiles::Profile& profile, const std::vector<Target>& targets,
                               const Sharing& sharing, const std::vector<std::size_t>& which);

}  // namespace shardwright::sim
