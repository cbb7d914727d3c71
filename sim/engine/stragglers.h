// SPDX-License-Identifier: Apache-2.0
// Several ranks whose kernels vary in time, joined by their collectives.
//
// The representative rank of engine.h already meets equal-priority kernels in the unlucky order.
// This mode adds what one rank cannot show: clocks differ from GPU to GPU and kernels from run to
// run, and a collective moves only once the last rank has joined it. Every rank is simulated whole;
// the times at which the last rank joins each collective are found by iteration: a collective's
// joining times depend only on earlier collectives, so repeating the round settles them in order.
// Deterministic for a seed. Left out: the network's own variation.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/core/schedule.h"
#include "sim/engine/engine.h"

namespace shardwright::sim {

struct StragglerOptions {
  int ranks = 8;  // simulated; the slowest of them stands for the slowest of all
  /// So many neighbours meet in the collectives of layers (tensor, context and expert groups), and
  /// those at one place among them in all others. 0: all ranks meet in every collective.
  int pass_ranks = 0;
  double kernel_spread = 0.02;             // standard deviation of a kernel's duration
  std::optional<double> rank_spread = {};  // as of RankDraws
  std::uint64_t seed = 1;
  int max_rounds = 200;
  EngineOptions engine = {};  // how the device's streams share it
};

struct StragglerResult {
  StepTime slowest;  // of the rank that finishes last
  Nanoseconds waiting_ns =
      0;  // mean over ranks: resident in a collective before the last rank joined
  std::array<Nanoseconds, kCommGroups> exposed_ns{};  // as of StepTime, the mean over ranks
  int rounds = 0;                                     // until joining times settled
  bool settled = false;
};

StragglerResult simulate_stragglers(const Schedule& schedule, const std::vector<OpCost>& costs,
                                    const StragglerOptions& options = {});

}  // namespace shardwright::sim
