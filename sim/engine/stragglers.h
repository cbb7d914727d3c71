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
#include <cmath>
#include <cstdint>
#include <numbers>
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

// By what kernels' times vary: a part of the variance is the rank's (clocks differ from GPU to
// GPU), half of it where nobody says, the rest that of each run of a kernel. A number depends on
// seed, rank and count alone, so that whoever draws in whatever order draws the same.

class RankDraws {
 public:
  /// `spread` is the standard deviation of a kernel's time, as a fraction, `rank_spread` what of it
  /// all kernels of a rank have alike, at most as much.
  RankDraws(double spread, std::uint64_t seed, std::uint64_t rank,
            std::optional<double> rank_spread = {})
      : share_(rank_spread ? std::sqrt(spread * spread - *rank_spread * *rank_spread)
                           : spread / std::numbers::sqrt2),
        seed_(seed),
        stream_(rank + 1),
        of_rank_(rank_spread.value_or(share_) * normal(seed, 0, rank)) {}

  /// On the duration of the n-th kernel that the rank runs.
  double factor(std::uint64_t n) const {
    return std::exp(of_rank_ + share_ * normal(seed_, stream_, n));
  }

 private:
  /// Counter-based generator (splitmix64): the n-th number of a stream depends on nothing else.
  static std::uint64_t hash(std::uint64_t seed, std::uint64_t stream, std::uint64_t n) {
    std::uint64_t x = seed * 0x9E3779B97F4A7C15ULL + stream * 0xD1B54A32D192ED03ULL + n;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
  }
  static double uniform(std::uint64_t bits) {
    return (static_cast<double>(bits >> 11) + 0.5) * 0x1.0p-53;
  }
  /// Standard normal by Box and Muller.
  static double normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t n) {
    const double u = uniform(hash(seed, stream, 2 * n));
    const double v = uniform(hash(seed, stream, 2 * n + 1));
    return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
  }

  double share_;
  std::uint64_t seed_, stream_;
  double of_rank_;
};

}  // namespace shardwright::sim
