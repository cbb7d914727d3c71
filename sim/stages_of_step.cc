// SPDX-License-Identifier: Apache-2.0
#include "sim/stages_of_step.h"

#include <fmt/core.h>

#include <algorithm>

#include "profiles/uncertainty/model_parallel_uncertainty.h"
#include "sim/core/base/error.h"
#include "sim/program/low_precision.h"
#include "sim/uncertainty/intervals.h"

namespace shardwright::sim {
namespace {

Bytes whole_bytes(double bytes) {
  return static_cast<Bytes>(bytes);
}

/// The strategy whose gathers and reductions stand for those of the plan's, in software that has
/// none of that name and in pipelines; empty where the strategy's own are meant.
std::string_view stands_for(const Plan& plan, const Stack& stack) {
  const StrategyInfo& strategy = info_of(plan.strategy);
  if (!stack.parallel.always) return "";
  if (strategy.second_shard) return name_of(Strategy::kFsdp2);
  if (strategy.shards == Sharded::kGradients) return name_of(Strategy::kZero1);
  const bool own = strategy.software == Software::kFsdp2 ||
                   strategy.software == Software::kMegatron ||
                   strategy.shards != Sharded::kParameters;
  return own ? "" : name_of(Strategy::kMegatronFsdp);
}

void fill_memory(Prediction& p, const profiles::Profile& profile, const Plan& plan,
                 const Layout& layout, const StagesOfStep& step) {
  MemoryPrediction& m = p.memory;
  m.by_formula = true;
  m.usable_bytes = profile.cluster.memory_bytes_per_rank(plan.gpus);
  m.runtime_bytes = runtime_bytes(profile, layout);
  std::size_t fullest = 0;
  for (std::size_t s = 0; s < step.memory.size(); ++s) {
    const StageMemory& memory = step.memory[s];
    const StageTime& time = step.stages[s];
    StagePrediction& stage = p.stages.emplace_back();
    stage.stage = static_cast<std::int64_t>(s);
    stage.layers = step.layers[s];
    stage.compute_s = time.compute_s;
    stage.exposed_communication_s = time.exposed_s;
    stage.host_s = time.host_s;
    stage.optimizer_s = time.optimizer_s;
    stage.bubble_s = time.bubble_s;
    stage.peak_allocated_bytes = whole_bytes(memory.allocated_bytes);
    stage.peak_reserved_bytes = whole_bytes(memory.reserved_bytes);
    stage.fits = stage.peak_reserved_bytes + m.runtime_bytes <= m.usable_bytes;
    if (memory.reserved_bytes > step.memory[fullest].reserved_bytes) fullest = s;
  }
  const StageMemory& full = step.memory[fullest];
  m.peak_allocated_bytes = m.peak_active_bytes = whole_bytes(full.allocated_bytes);
  m.peak_reserved_bytes = whole_bytes(full.reserved_bytes);
  for (std::size_t i = 0; i < m.breakdown_bytes.size(); ++i) {
    m.breakdown_bytes[i] = whole_bytes(full.breakdown_bytes[i]);
  }
  m.peak_at = step.memory.size() == 1 ? "the backward pass"
                                      : fmt::format("the backward pass of stage {}", fullest);
  m.total_bytes = m.peak_reserved_bytes + m.runtime_bytes;
  m.fits = m.total_bytes <= m.usable_bytes;
}

}  // namespace

Bytes runtime_bytes(const profiles::Profile& profile, const Layout& layout) {
  return profile.cluster.gpu.runtime_bytes +
         whole_bytes(communicators(layout) * profile.stack.parallel.communicator_bytes);
}

bool replays_memory(const Model& model, const Plan& plan, const Stack& stack) {
  const auto& numerics = plan.numerics;
  const bool keeps_casts = info_of(plan.strategy).shards != Sharded::kParameters &&
                           numerics.precision != Precision::kBf16 &&
                           !casts_for_each_product(stack, plan);
  return !stack.parallel.always && plan.parallel.pp == 1 && model.mtp_layers == 0 &&
         numerics.lora == 0 && numerics.optimizer == Optimizer::kAdamw && !keeps_casts;
}

Bytes parallel_memory_bytes(const Model& model, const profiles::Profile& profile, const Plan& plan,
                            const UnitActivations& activations) {
  const Layout layout = layout_of(plan, profile.cluster);
  // Where the schedule is replayed gradients and gathered parameters may be elsewhere at its peak.
  const bool replays = replays_memory(model, plan, profile.stack);
  const auto bytes_of_stage = [&](StageMemory stage) {
    if (!replays) return stage.reserved_bytes;
    return stage.of(MemoryCategory::kParameters) + stage.of(MemoryCategory::kMaster) +
           stage.of(MemoryCategory::kOptimizer) + stage.of(MemoryCategory::kActivations) +
           stage.of(MemoryCategory::kLoss);
  };
  Bytes most = 0;
  for (const StageMemory& stage :
       stage_memory(model, plan, profile, layout, partition_layers(model, plan, profile.stack),
                    activations)) {
    most = std::max(most, whole_bytes(bytes_of_stage(stage)));
  }
  return most + runtime_bytes(profile, layout);
}

void finish_parallel(Prediction& p, const Model& model, const profiles::Profile& profile,
                     const StagesOfStep& stages, const std::string& source) {
  const Plan& plan = p.plan;
  fill_memory(p, profile, plan, layout_of(plan, profile.cluster), stages);
  p.pipeline.micro_batches = plan.grad_accum;
  p.extrapolated = profiles::model_parallel_uncertainty().extrapolations(
      profile.stack.family, profile.cluster.gpu.id, plan.gpus);
  if (const std::string_view other = stands_for(plan, profile.stack); !other.empty()) {
    const std::string beyond = beyond_data_parallel(plan);
    p.extrapolated.push_back(fmt::format(
        "strategy {} {}: its gathers and reductions are priced as those of {}",
        name_of(plan.strategy),
        beyond.empty() ? "in framework " + profile.stack.id : "where " + beyond, other));
  }
  const double others = published_half_width(p, model, profile, source);
  const Precision precision = plan.numerics.precision;
  const double own = profiles::model_parallel_uncertainty().half_width(
      model.is_moe(), precision == Precision::kFp8 || precision == Precision::kNvfp4,
      profile.cluster.gpu.id);
  if (own > 0) p.time.scale_half_width = 0;
  set_intervals(p, profile, own > 0 ? own : others);
  // Software that also runs plans of data parallelism has published peaks of its own there.
  const double memory_width = profiles::model_parallel_uncertainty().memory_half_width;
  if (profile.stack.parallel.always && memory_width > 0) {
    set_memory_interval(p.memory, {memory_width, memory_width});
  }
}

}  // namespace shardwright::sim
