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

#include <cstdint>
#include <deque>
#include <vector>

#include "profiles/calibration.h"
#include "profiles/observation.h"
#include "profiles/profile.h"
#include "sim/cost/collectives.h"
#include "sim/cost/cost.h"
#include "sim/cost/op_cost.h"

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

// The time of a measured row by a profile's formulas: what calibration compares with measurements.
//
// Kernels by op_cost.h, collectives by collectives.h, the host by the stack's launch costs.
// Products that the profile has measurements of are predicted by the formula all the same, because
// the formula is what is fitted and held against rows. A kernel that a collective stood beside for
// a share c of its time takes 1 / ((1 - c) / alone + c / contended).

class RowTimes {
 public:
  /// Costs of one state of `profile`, which must outlive it and stay as it is. `sharing` is what
  /// the collectives of these rows take.
  RowTimes(const profiles::Profile& profile, const Sharing& sharing);

  /// Seconds, including contention as far as the row has any.
  double seconds(const profiles::MeasuredRow& row) const;
  /// Seconds alone, and beside a collective (a collective: beside kernels) all the time.
  double alone_s(const profiles::MeasuredRow& row) const;
  double contended_s(const profiles::MeasuredRow& row) const;

 private:
  /// What depends on how many ranks share a device.
  struct Costs {
    std::int32_t sharers = 1;
    KernelCosts kernels;
    profiles::CollectiveParams collectives;
    double copies_take_turns = 0, host_turns = 1;
  };
  const Costs& costs_for(std::int32_t sharers) const;
  double efficiency_of(const profiles::Observation& operation) const;
  double kernel_s(const profiles::MeasuredRow& row, const Sharing& sharing) const;
  double collective_s(const profiles::Observation& operation) const;
  double host_s(const profiles::Observation& operation) const;

  const profiles::Profile& profile_;
  NodeNetwork network_;
  Sharing sharing_;
  mutable std::deque<Costs> costs_;  // made when first asked for
};

/// The collective of a row as NCCL would run it, messages as the profile's software sends them.
CollectiveCost collective_of(const profiles::Profile& profile,
                             const profiles::CollectiveParams& params, const NodeNetwork& network,
                             const profiles::Observation& operation, double copies_take_turns = 0);

/// The mean over the collectives among `rows`, weighted by time; by the profile's channels when
/// there are none.
Sharing sharing_of(const profiles::Profile& profile,
                   const std::vector<profiles::MeasuredRow>& rows);

// What a fit of a group compares: rows' times, or times beside a collective over times alone.

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
