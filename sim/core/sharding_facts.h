// SPDX-License-Identifier: Apache-2.0
// What a strategy says about the memory that outlives operations: what is divided, where gathered
// parameters and fresh gradients are kept, in which types sums are made. A strategy states it once
// (ShardingStrategy::declare); sim/core/placement.h turns it into bytes and addresses, for memory
// prediction and executor alike.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sim/core/dtype.h"
#include "sim/core/strategy.h"
#include "sim/core/units.h"

namespace shardwright {

/// Parameters of each kind of unit, padded to a multiple of the shard group; 0: no such unit.
struct UnitSizes {
  std::int64_t embedding = 0, layer = 0, head = 0;
  std::int64_t norms = 0;  // of all layers, where a strategy keeps them apart
  // Of layers with experts, which the model's layers count, too: without their routed experts, and
  // those.
  std::int64_t moe_layers = 0, moe_layer = 0, experts = 0;
  // Of layers that have kinds, all together; `layer` and `moe_layer` are then the largest.
  std::int64_t mixed_layers = 0;
  // Of modules of multi-token prediction together, likewise.
  std::int64_t predictions = 0, prediction_experts = 0;
  // Of a head without parameters, because they are in the embedding's unit, that sums their
  // gradients for itself: as many as that unit has.
  std::int64_t head_gradient = 0;

  /// Of a pipeline's chunk or stage: the head may be another one's.
  bool in_parts = false;

  /// The head's weights belong to the embedding's unit, and both write one gradient.
  bool tied() const { return head == 0 && head_gradient == 0 && !in_parts; }
  /// Norms apart.
  std::int64_t largest() const { return std::max({embedding, layer, head}); }
  std::int64_t all_experts() const { return moe_layers * experts + prediction_experts; }
  std::int64_t total(std::int64_t layers) const {
    const std::int64_t of_layers =
        mixed_layers > 0 ? mixed_layers : (layers - moe_layers) * layer + moe_layers * moe_layer;
    return embedding + of_layers + predictions + head + norms;
  }
};

/// Gathered parameters, or what backward writes, of a step.
struct UnitBuffers {
  /// Units that have a place at once: they take turns. 0: they come and go (MemoryActions).
  std::int32_t count = 0;
  static constexpr std::int32_t kEveryUnit = -1;

  bool rotate() const { return count > 0; }
  bool every_unit() const { return count == kEveryUnit; }
};

struct ShardingFacts {
  Sharded shards = Sharded::kNothing;
  DType parameter_dtype = DType::kBf16;  // computed with and gathered
  DType reduce_dtype = DType::kFp32;
  DType master_dtype = DType::kFp32;
  DType moment_dtype = DType::kFp32;
  DType sum_dtype = DType::kFp32;  // of gradients over micro-batches
  double moment_bytes = 8;         // of all that is kept of a parameter beside its master
  /// Of a layer's parameter as it is kept to compute with: with copies in fewer bits, or quantized.
  /// 0: in parameter_dtype.
  double layer_parameter_bytes = 0;
  /// Of gradients that are kept beside their sums, in the type of the weights.
  double small_gradient_bytes = 0;
  /// Beside frozen parameters, those that are updated, and the own share of them; -1: all are.
  std::int64_t trained = -1, trained_owned = -1;
  std::int64_t largest_trained = 0;  // of a unit, beside frozen ones
  bool separates_norms = false;      // norms of all layers are a unit of their own
  bool keeps_optimizer = true;       // master and moments are on the device
  /// Beside the master there is, for the whole step, what is computed with: whole, or the share
  /// that is gathered.
  bool keeps_parameters = false;
  bool keeps_sums = false;  // sums of gradients are there for the whole step
  UnitBuffers weights;
  UnitBuffers gradients;
  /// Sums of whole gradients are added to by backward itself, as far as it writes a gradient in one
  /// piece: those of layers. Others have a buffer in which their pieces come together first.
  bool sums_in_backward = false;
  /// Sums are whole although shares would do: they are reduced once a step.
  bool sums_whole = false;
  /// A reduction's result has a place of its own before it is added to the sum.
  bool reduces_through_shard = false;
  Bytes gradient_bucket_bytes = 0;
  Bytes all_reduce_bucket_bytes = 0;
  Bytes workspace_bytes = 0;
  /// Tensors that the optimizer updates, for what launches kernels for each.
  std::int64_t update_tensors = 1;

  /// What is computed with has another type than what is updated.
  bool has_compute_copy() const { return parameter_dtype != master_dtype; }
  /// Sums are made of whole gradients, not of shares.
  bool sums_whole_gradients() const { return sums_whole || shards <= Sharded::kOptimizer; }
};

}  // namespace shardwright
