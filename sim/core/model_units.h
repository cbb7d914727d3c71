// SPDX-License-Identifier: Apache-2.0
// The units of a model on one rank: how many numbers each kind has there, and over which group a
// strategy shards it.
//
// The routed experts of a layer are a unit of their own, because fewer ranks hold the same ones: a
// strategy that gathers and reduces units needs to know no more about experts than their group.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "sim/core/local_shape.h"

namespace shardwright {

/// Ranks that hold the same numbers of a unit, or the part of them that a strategy shards over.
constexpr CommGroup sharded_over(ModelUnit unit) {
  return unit == ModelUnit::kExperts ? CommGroup::kExpertData : CommGroup::kShard;
}

/// Of the rank that holds the most.
class ModelUnits {
 public:
  ModelUnits() = default;
  ModelUnits(const Model& model, const Parallelism& parallel);

  /// Of one unit of that kind; kNorms of all layers, which their layers count, too.
  std::int64_t elements(ModelUnit unit) const { return elements_[static_cast<std::size_t>(unit)]; }
  /// Rows of the vocabulary: the embedding's table, the head's, or both where they are tied.
  std::int64_t vocabulary() const { return vocabulary_; }
  /// Of one module of multi-token prediction: the product before its layer.
  std::int64_t prediction_projection() const { return prediction_projection_; }

 private:
  std::array<std::int64_t, kModelUnits> elements_{};
  std::int64_t vocabulary_ = 0, prediction_projection_ = 0;
};

}  // namespace shardwright
