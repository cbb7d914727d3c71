// SPDX-License-Identifier: Apache-2.0
// What the strategies' files share about what a rank holds for the whole step.
#pragma once

#include <cstdint>

#include "sim/program/adapters.h"
#include "sim/program/gradient_type.h"
#include "sim/program/low_precision.h"
#include "sim/program/optimizer_state.h"
#include "sim/strategies/step_writer.h"

namespace shardwright::sim {

/// What every strategy says alike: what is divided, and the plan's types.
inline ShardingFacts facts_of(const StrategyInfo& strategy, const StepWriter& w) {
  const Plan& plan = w.plan();
  ShardingFacts facts;
  facts.shards = strategy.shards;
  facts.parameter_dtype = plan.param_dtype;
  facts.reduce_dtype = plan.reduce_dtype;
  facts.master_dtype = plan.master_dtype;
  facts.moment_dtype = plan.moment_dtype;
  facts.moment_bytes = moment_bytes(plan);
  if (plan.numerics.quantize != Quantize::kNone) {
    facts.layer_parameter_bytes = quantized_weight_bytes(plan.numerics.quantize);
  } else if (w.stack().memory != MemoryManager::kStatic &&
             strategy.shards != Sharded::kParameters) {
    const Bytes wider = bytes_of(plan.param_dtype) - bytes_of(DType::kBf16);
    facts.layer_parameter_bytes = weight_bytes(plan, w.stack(), w.gpu());
    if (plan.numerics.lora == 0) facts.layer_parameter_bytes += static_cast<double>(wider);
  }
  if (plan.numerics.lora > 0) {
    facts.trained = w.total_trained();
    facts.trained_owned = w.total_trained_owned();
    facts.largest_trained = w.largest_trained();
  }
  facts.sum_dtype = plan.master_dtype;
  facts.keeps_optimizer = plan.offload != Offload::kOptimizer;
  // One for each matrix, which a layer's are counted as: foreach kernels take many at once.
  facts.update_tensors = w.layers() + 2;
  return facts;
}

/// A compute copy exists beside the master when their dtypes differ.
inline bool has_compute_copy(const Plan& plan) {
  return plan.param_dtype != plan.master_dtype;
}

/// Whether gradients are written in another type than they are reduced in.
inline bool casts_gradients(const StepWriter& w) {
  return gradient_dtype(w.plan(), w.stack()) != w.plan().reduce_dtype;
}

/// What strategies that sum whole gradients on the native stack, and otherwise have `usual` buffers
/// for fresh ones, say about them. The first micro-batch writes the sums, where they have its type;
/// later ones add to them, which rounds each sum once, and need a buffer only for units that write
/// a gradient in more than one piece (chunks of the head's tokens, a tied embedding).
inline void sum_whole_gradients(ShardingFacts& facts, const StepWriter& w, std::int32_t usual) {
  const DType reduced = w.plan().reduce_dtype;
  const bool writes_sums =
      reduced == DType::kFp32 || (reduced == facts.sum_dtype && !casts_gradients(w));
  facts.sums_in_backward = writes_sums && w.plan().grad_accum > 1;
  facts.gradients.count = facts.sums_in_backward                          ? 1
                          : casts_gradients(w) || w.plan().grad_accum > 1 ? usual
                                                                          : 0;
}

/// Traffic of converting one element from dtype `from` to `to`.
constexpr std::int64_t cast_bytes(DType from, DType to) {
  return bytes_of(from) + bytes_of(to);
}

}  // namespace shardwright::sim
