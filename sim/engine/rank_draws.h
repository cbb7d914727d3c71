// SPDX-License-Identifier: Apache-2.0
// By what kernels' times vary: a part of the variance is the rank's (clocks differ from GPU to
// GPU), half of it where nobody says, the rest that of each run of a kernel. A number depends on
// seed, rank and count alone, so that whoever draws in whatever order draws the same.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>

namespace shardwright::sim {

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
