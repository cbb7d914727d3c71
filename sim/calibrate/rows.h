// SPDX-License-Identifier: Apache-2.0
// Many timings of one operation, condensed to one row.
//
// A trace repeats every operation in every layer and step. What a formula can be wrong about is the
// operation, not its thousandth timing, so fits count distinct operations: their time is the median
// of the timings, their spread is kept. Collectives (and whatever else has an `instance`) contain
// waiting for the slowest rank: of an instance the least over ranks is taken, and where not all
// ranks of the group were traced a low quantile over instances. What launches cost the host is a
// mean, because the sum of many matters, of timings cut at ten times their median.
//
// Rows tell apart the layout of products (forward, gradient of the input, of the weight), the
// kernels of a stack (lowered work) by operation and direction, and stretches of contention.
#pragma once

#include <vector>

#include "profiles/calibration.h"
#include "profiles/observation.h"

namespace shardwright::sim {

/// From which share of its time beside a collective a kernel counts as contended.
inline constexpr double kContended = 0.05;

struct Rows {
  std::vector<profiles::MeasuredRow> rows;  // in an order that does not depend on that of the input
  std::vector<profiles::LeftOut> left_out;  // observations that no formula takes
};

/// Observations of impossible values (times not above 0 or not finite, sizes that no machine has)
/// are left out and counted.
Rows rows_of(const profiles::ObservationSet& set);

/// The rows of several profiles or traces together: equal operations become one row, weighted by
/// how often each was timed.
std::vector<profiles::MeasuredRow> merged(const std::vector<profiles::MeasuredRow>& rows);

/// Which group's parameters a row is about. Contended rows belong to their kind of work.
profiles::CostGroup group_of(const profiles::MeasuredRow& row);

/// "4096 x 11008 x 4096", "norm forward of 33.6 MB", "all_gather of 64 MiB on 8 ranks".
std::string describe(const profiles::MeasuredRow& row);

}  // namespace shardwright::sim
