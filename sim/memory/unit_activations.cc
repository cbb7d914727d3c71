// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/unit_activations.h"

#include <algorithm>

namespace shardwright::sim {
namespace {

void change(ActivationBytes& level, const ActivationBytes& by, Bytes sign = 1) {
  level.activations += sign * by.activations;
  level.loss += sign * by.loss;
}

void raise(ActivationBytes& most, ActivationBytes level, const ActivationBytes& beyond = {}) {
  change(level, beyond);
  if (level.all() > most.all()) most = level;
}

/// Walks a list up to its operation `end`; returns the most beyond `level`, which becomes what is
/// there then.
ActivationBytes walk(const std::vector<MemoryAction>& lifetimes, ActivationBytes& level,
                     std::size_t end = SIZE_MAX) {
  ActivationBytes most = level;
  for (const MemoryAction& action : lifetimes) {
    if (action.op >= end) break;
    if (is_weight_gradient(action.tensor)) continue;
    Bytes& bytes = action.category == MemoryCategory::kLoss ? level.loss : level.activations;
    bytes += action.acquire ? action.bytes : -action.bytes;
    raise(most, level);
  }
  return most;
}

ActivationLevels levels_of(const UnitProgram& unit) {
  ActivationLevels levels;
  const TensorSet nothing;
  levels.forward =
      walk(lifetimes(unit.forward, unit.tensors, nothing, unit.kept, false), levels.kept);
  Ops both = unit.recompute;
  both.insert(both.end(), unit.backward.begin(), unit.backward.end());
  ActivationBytes level = levels.kept;
  levels.backward = walk(lifetimes(both, unit.tensors, unit.kept, unit.held, true), level);
  const auto weights = std::stable_partition(
      both.begin(), both.end(), [](const Op& op) { return op.kind != OpKind::kWeightGradient; });
  levels.deferred = levels.kept;
  levels.backward_input = walk(lifetimes(both, unit.tensors, unit.kept, {}, true), levels.deferred,
                               static_cast<std::size_t>(weights - both.begin()));
  return levels;
}

/// `first`, then `second`, whose tensors are its own.
ActivationLevels in_a_row(const ActivationLevels& first, const ActivationLevels& second) {
  ActivationLevels both;
  both.kept = first.kept;
  change(both.kept, second.kept);
  both.forward = first.forward;
  raise(both.forward, first.kept, second.forward);
  both.backward = first.backward;
  raise(both.backward, first.kept, second.backward);
  both.deferred = first.deferred;
  change(both.deferred, second.deferred);
  both.backward_input = first.backward_input;
  change(both.backward_input, second.deferred);
  raise(both.backward_input, first.kept, second.backward_input);
  return both;
}

}  // namespace

UnitActivations::UnitActivations(const Model& model, const Plan& plan, const Stack& stack)
    : model_(model) {
  const ProgramWriter writer(model, plan, stack);
  message_ = writer.tensor(Tensor::kX).bytes;
  embedding_ = levels_of(writer.embedding());
  head_ = levels_of(writer.head());
  const bool recomputes = plan.recompute != Recompute::kNone && plan.ckpt_layers > 0;
  for (const bool experts : {false, true}) {
    if (experts && !model.is_moe()) break;
    layer_[experts][false] = levels_of(writer.layer(false, experts));
    layer_[experts][true] =
        recomputes ? levels_of(writer.layer(true, experts)) : layer_[experts][false];
  }
  if (model.mtp_layers > 0) {
    prediction_ = in_a_row(
        in_a_row(levels_of(writer.prediction_projection()), layer_[model.is_moe()][false]), head_);
  }
}

ActivationLevels UnitActivations::of(const ChunkContent& chunk, std::int64_t offloaded) const {
  ActivationLevels sum;
  if (chunk.embedding) {
    sum = embedding_;
  } else {
    sum.kept.activations = message_;  // what enters belongs to the first unit
    sum.forward = sum.backward = sum.deferred = sum.backward_input = sum.kept;
  }
  const std::int64_t on_device = chunk.layers - offloaded;
  for (std::int64_t i = 0; i < chunk.layers; ++i) {
    ActivationLevels layer =
        layer_[model_.has_experts(chunk.first_layer + i)][i < chunk.recomputed];
    if (i >= on_device) {
      change(layer.deferred, layer.kept, -1);
      layer.kept = {};
    }
    sum = in_a_row(sum, layer);
  }
  for (std::int64_t i = 0; i < chunk.extra_predictions; ++i) sum = in_a_row(sum, prediction_);
  if (chunk.head) sum = in_a_row(sum, head_);
  // What leaves is gone when it has been sent: hidden states without a head, their gradient without
  // an embedding, which arrived where there is no head.
  const Bytes sent = chunk.head ? 0 : message_;
  sum.kept.activations -= sent;
  sum.deferred.activations -= sent;
  sum.deferred.activations += message_ * (chunk.embedding - chunk.head);
  return sum;
}

const UnitActivations& ActivationCache::at(const Plan& plan) {
  ListKey key(plan);
  // Nothing of it changes what lives.
  key.plan.grad_accum = 1;
  key.plan.offload = Offload::kNone;
  key.plan.offload_layers = 0;
  Parallelism& p = key.plan.parallel;
  p.ep_overlap.reset();
  p.overlap_grad_reduce.reset();
  p.overlap_param_gather.reset();
  p.cuda_graphs.reset();
  const auto known = known_.find(key);
  if (known != known_.end()) return known->second;
  return known_.emplace(key, UnitActivations(model_, plan, stack_)).first->second;
}

}  // namespace shardwright::sim
