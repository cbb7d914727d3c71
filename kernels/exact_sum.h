// SPDX-License-Identifier: Apache-2.0
// An exact sum of squares of fp32 or bf16 numbers, and with it a gradient norm that does not depend
// on sharding.
//
// Floating-point sums depend on their order, so a norm summed shard by shard would differ between
// 2 and 4 ranks and clipping would pull the runs apart. The square of a float has at most 48
// significant bits between 2^-298 and 2^256; the sum is kept as one 640-bit integer in units of
// 2^-320. Integer addition is exact, hence any split over threads, shards and ranks gives the same
// bits, with no alignment rule for shard boundaries.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels/bf16.h"

namespace shardwright::kernels {

class ExactSum {
 public:
  /// Twenty 32-bit digits, lowest first, and the count of non-finite inputs.
  static constexpr std::size_t kWords = 21;

  void add_squares(std::span<const float> values);
  void add_squares(std::span<const BFloat16> values);
  /// Adds numbers that are themselves exact sums of squares or differences of such: finite
  /// multiples of 2^-298 below 2^300.
  void add_exact(std::span<const double> values);
  void merge(const ExactSum& other);

  /// The state for exchange between ranks: adding the words of up to 2^30 ranks as plain int64 and
  /// building an ExactSum from the result is the exact sum of all.
  std::array<std::int64_t, kWords> words() const { return words_; }
  static ExactSum from_words(const std::array<std::int64_t, kWords>& words);

  /// The sum, rounded; NaN when an input was infinite or NaN.
  double value() const;
  std::int64_t nonfinite() const { return words_[kWords - 1]; }

 private:
  template <class T>
  void add(std::span<const T> values);
  void carry();

  std::array<std::int64_t, kWords> words_{};  // digits below 2^32 between calls
};

}  // namespace shardwright::kernels
