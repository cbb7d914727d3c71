// SPDX-License-Identifier: Apache-2.0
// Cosines and sines of rotary position embedding for every position and pair of a head.
//
// Pair j of d/2 turns by position * theta^(-2j/d). Linear scaling divides all frequencies by a
// factor; llama3 scaling divides low ones, keeps high ones and blends between, as Hugging Face
// transformers' modeling_rope_utils.py does. Like there, frequencies and angles are rounded to
// fp32, so that a model trained elsewhere sees the angles it was trained with.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/model.h"

namespace shardwright::kernels {

/// The d/2 frequencies for a rotated size of `rotary_dim`, which is even, after scaling.
std::vector<float> rope_frequencies(const Rope& rope, std::int64_t rotary_dim);

/// Cosines and sines in someone else's memory, each [positions, pairs].
struct RopeView {
  std::int64_t positions = 0;
  std::int64_t pairs = 0;
  const float* cosine = nullptr;
  const float* sine = nullptr;
};

class RopeTable {
 public:
  RopeTable() = default;
  /// `rotary_dim` is the even number of leading elements of each head that are rotated.
  RopeTable(const Rope& rope, std::int64_t positions, std::int64_t rotary_dim);

  std::int64_t positions() const { return positions_; }
  std::int64_t pairs() const { return pairs_; }
  const float* cosine() const { return cosine_.data(); }  // [positions, pairs]
  const float* sine() const { return sine_.data(); }
  operator RopeView() const { return {positions_, pairs_, cosine(), sine()}; }

 private:
  std::int64_t positions_ = 0;
  std::int64_t pairs_ = 0;
  std::vector<float> cosine_;
  std::vector<float> sine_;
};

}  // namespace shardwright::kernels
