// SPDX-License-Identifier: Apache-2.0
#include "sim/core/schedule.h"

#include <fmt/format.h>

namespace shardwright {

std::string_view name_of(OpKind kind) {
  switch (kind) {
    case OpKind::kEmbedding:
      return "embedding";
    case OpKind::kNorm:
      return "norm";
    case OpKind::kQkvProjection:
      return "qkv_projection";
    case OpKind::kQProjection:
      return "q_projection";
    case OpKind::kKProjection:
      return "k_projection";
    case OpKind::kVProjection:
      return "v_projection";
    case OpKind::kQkNorm:
      return "qk_norm";
    case OpKind::kRope:
      return "rope";
    case OpKind::kAttention:
      return "attention";
    case OpKind::kOutputProjection:
      return "output_projection";
    case OpKind::kResidual:
      return "residual";
    case OpKind::kGateUpProjection:
      return "gate_up_projection";
    case OpKind::kGateProjection:
      return "gate_projection";
    case OpKind::kUpProjection:
      return "up_projection";
    case OpKind::kActivation:
      return "activation";
    case OpKind::kDownProjection:
      return "down_projection";
    case OpKind::kHeadProjection:
      return "head_projection";
    case OpKind::kLoss:
      return "loss";
    case OpKind::kRouter:
      return "router";
    case OpKind::kPermute:
      return "permute";
    case OpKind::kQuantize:
      return "quantize";
    case OpKind::kAllToAll:
      return "all_to_all";
    case OpKind::kInputGradient:
      return "input_gradient";
    case OpKind::kWeightGradient:
      return "weight_gradient";
    case OpKind::kAllGather:
      return "all_gather";
    case OpKind::kReduceScatter:
      return "reduce_scatter";
    case OpKind::kAllReduce:
      return "all_reduce";
    case OpKind::kBroadcast:
      return "broadcast";
    case OpKind::kCastShard:
      return "cast_shard";
    case OpKind::kCastGradient:
      return "cast_gradient";
    case OpKind::kConcatenate:
      return "concatenate_gradients";
    case OpKind::kCopyIn:
      return "copy_in";
    case OpKind::kCopyOut:
      return "copy_out";
    case OpKind::kScale:
      return "scale";
    case OpKind::kAccumulate:
      return "accumulate";
    case OpKind::kZero:
      return "zero";
    case OpKind::kGradientNorm:
      return "gradient_norm";
    case OpKind::kClip:
      return "clip";
    case OpKind::kOptimizer:
      return "optimizer";
    case OpKind::kHostWork:
      return "host_work";
    case OpKind::kSynchronize:
      return "synchronize";
  }
  return "?";
}

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::kPrepare:
      return "prepare";
    case Phase::kForward:
      return "forward";
    case Phase::kLoss:
      return "loss";
    case Phase::kRecompute:
      return "recompute";
    case Phase::kBackward:
      return "backward";
    case Phase::kReduce:
      return "reduce";
    case Phase::kOptimizer:
      return "optimizer";
  }
  return "?";
}

void Schedule::clear() {
  streams.clear();
  ops.clear();
  memory.clear();
  blocks.clear();
  bodies.clear();
  sections.clear();
  persistent.clear();
  groups.fill({});
  sharding = {};
  unit_sizes = {};
  event_names.clear();
}

std::string unit_name(const Schedule& schedule, std::int32_t unit) {
  if (unit == 0) return "embedding";
  if (unit <= schedule.layers) return fmt::format("layer{}", unit - 1);
  return unit == schedule.head_unit() ? "head" : "norms";
}

std::string describe(const Schedule& schedule, const OpInstance& instance) {
  const Op& op = schedule.ops[instance.op];
  const bool step_wide = op.phase == Phase::kOptimizer || op.phase == Phase::kPrepare;
  const bool names_unit = !step_wide || op.target == kNormUnit;
  std::string text =
      names_unit ? unit_name(schedule, schedule.target(op, instance.unit)) + "." : "";
  text += name_of(op.phase);
  text += ".";
  if (op.kind == OpKind::kInputGradient || op.kind == OpKind::kWeightGradient) {
    text += name_of(op.of);
    text += ".";
  }
  text += name_of(op.kind);
  if (op.part > 0) text += fmt::format("#{}", static_cast<int>(op.part));
  return text;
}

}  // namespace shardwright
