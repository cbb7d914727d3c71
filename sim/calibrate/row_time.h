// SPDX-License-Identifier: Apache-2.0
// The time of a measured row by a profile's formulas: what calibration compares with measurements.
//
// Kernels by work_time.h, collectives by collectives.h, the host by the stack's launch costs.
// Products that the profile has measurements of are predicted by the formula all the same, because
// the formula is what is fitted and held against rows. A kernel that a collective stood beside for
// a share c of its time takes 1 / ((1 - c) / alone + c / contended).
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "profiles/calibration.h"
#include "profiles/profile.h"
#include "sim/cost/collectives.h"
#include "sim/cost/cost.h"
#include "sim/cost/work_time.h"

namespace shardwright::sim {

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

/// The collective of a row as NCCL would run it.
CollectiveCost collective_of(const profiles::CollectiveParams& params, const NodeNetwork& network,
                             std::int64_t gpus_per_node, const profiles::Observation& operation,
                             double copies_take_turns = 0);

/// The mean over the collectives among `rows`, weighted by time; by the profile's channels when
/// there are none.
Sharing sharing_of(const profiles::Profile& profile,
                   const std::vector<profiles::MeasuredRow>& rows);

}  // namespace shardwright::sim
