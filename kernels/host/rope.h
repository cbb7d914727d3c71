// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding, in place, on query and key heads.
//
// Hugging Face's half-rotate order: element j of a head is paired with element j + pairs, so
// weights of Hugging Face models need no permutation. Elements beyond 2 pairs (partial rotary)
// stay.
//
// Pair j of d/2 turns by position * theta^(-2j/d). Linear scaling divides all frequencies by a
// factor; llama3 scaling divides low ones, keeps high ones and blends between, as Hugging Face
// transformers' modeling_rope_utils.py does. Like there, frequencies and angles are rounded to
// fp32, so that a model trained elsewhere sees the angles it was trained with.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/arguments.h"
#include "kernels/bf16.h"
#include "kernels/host/parallel.h"
#include "sim/core/model.h"

namespace shardwright::kernels {

/// The d/2 frequencies for a rotated size of `rotary_dim`, which is even, after scaling.
std::vector<float> rope_frequencies(const Rope& rope, std::int64_t rotary_dim);

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

namespace host {

enum class RopeDirection { kForward, kBackward };

/// Rotates every head by its token's angle; kBackward turns the gradient the other way. Token t has
/// position positions[t], or t % seq when positions is null (packed documents start again at 0).
/// Throws Error when a position lies outside the table.
template <class T>
void rope(Parallel& parallel, const Rows& rows, const RopeView& table,
          const std::int32_t* positions, std::int64_t seq, RopeDirection direction, T* x);

}  // namespace host
}  // namespace shardwright::kernels
