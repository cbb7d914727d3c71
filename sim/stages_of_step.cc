// SPDX-License-Identifier: Apache-2.0
#include "sim/stages_of_step.h"

#include <fmt/core.h>

#include <algorithm>

#include "profiles/uncertainty/model_parallel_uncertainty.h"
#include "sim/core/base/error.h"
#include "sim/core/placement.h"
#include "sim/pipeline/stage_schedules.h"
#include "sim/strategies/lower.h"
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
  if (!stack.parallel.megatron) return "";
  if (strategy.second_shard) return name_of(Strategy::kFsdp2);
  if (strategy.shards == Sharded::kGradients) return name_of(Strategy::kZero1);
  const bool own = strategy.software == Software::kFsdp2 ||
                   strategy.software == Software::kMegatron ||
                   strategy.shards != Sharded::kParameters;
  return own ? "" : name_of(Strategy::kMegatronFsdp);
}

void fill_stages(Prediction& p, const std::vector<StageOfStep>& stages) {
  const MemoryPrediction& m = p.memory;
  for (const StageOfStep& of : stages) {
    StagePrediction& stage = p.stages.emplace_back();
    stage.stage = std::ssize(p.stages) - 1;
    stage.layers = of.layers;
    stage.compute_s = of.time.compute_s;
    stage.exposed_communication_s = of.time.exposed_s;
    stage.host_s = of.time.host_s;
    stage.optimizer_s = of.time.optimizer_s;
    stage.bubble_s = of.time.bubble_s;
    stage.peak_allocated_bytes = of.allocated.bytes;
    stage.peak_reserved_bytes = of.reserved_bytes;
    stage.fits = of.reserved_bytes + m.runtime_bytes <= m.usable_bytes;
    std::copy(of.allocated.by_category.begin(), of.allocated.by_category.end(),
              stage.breakdown_bytes.begin());
  }
}

}  // namespace

Bytes runtime_bytes(const profiles::Profile& profile, const Layout& layout) {
  return profile.cluster.gpu.runtime_bytes +
         whole_bytes(communicators(layout) * profile.stack.parallel.communicator_bytes);
}

bool replays_memory(const Plan& plan, const Stack& stack) {
  return stack.memory == MemoryManager::kCachingAllocator && !stack.parallel.megatron &&
         plan.parallel.pp == 1;
}

std::vector<MemoryLevel> allocated_by_stage(const Model& model, const profiles::Profile& profile,
                                            const Plan& plan, ProgramCache& programs,
                                            StageMemory& stages,
                                            const std::vector<ChunkContent>& parts,
                                            StageMemory::Stages which) {
  const bool is_static = profile.stack.memory == MemoryManager::kStatic;
  std::vector<MemoryLevel> levels =
      stages.levels(plan, programs, parts, is_static ? StageMemory::Stages::kAll : which);
  if (!is_static) return levels;
  const std::vector<Schedule> schedules =
      stage_schedules(model, plan, profile.stack, profile.cluster, programs.at(plan));
  for (std::size_t s = 0; s < levels.size(); ++s) {
    const Bytes arenas = static_memory_bytes(schedules[s]);
    levels[s].by_category[static_cast<std::size_t>(MemoryCategory::kWorkspace)] +=
        arenas - levels[s].bytes;
    levels[s].bytes = arenas;
  }
  return levels;
}

Bytes parallel_memory_bytes(const Model& model, const profiles::Profile& profile, const Plan& plan,
                            ProgramCache& programs, StageMemory& stages, Schedule& scratch) {
  const Stack& stack = profile.stack;
  const Bytes runtime = runtime_bytes(profile, layout_of(plan, profile.cluster));
  const std::vector<ChunkContent> parts = partition_layers(model, plan, stack);
  const Bytes held = stages.held_bytes(plan, parts) + runtime;
  if (held > profile.cluster.memory_bytes_per_rank(plan.gpus)) return held;
  if (plan.parallel.pp > 1) {
    Bytes most = 0;
    for (const MemoryLevel& stage : allocated_by_stage(model, profile, plan, programs, stages,
                                                       parts, StageMemory::Stages::kFullest))
      most = std::max(most, estimated_reserved_bytes(stage, stack));
    return most + runtime;
  }
  if (stack.memory == MemoryManager::kStatic) {
    lower(model, plan, stack, profile.cluster, programs.at(plan), scratch);
    return static_memory_bytes(scratch) + runtime;
  }
  lower_chunk(model, plan, stack, profile.cluster, programs.memory_at(plan), whole_model(model),
              scratch, ChunkUse::kMemory);
  const MemoryLevel peak = allocated_peak(scratch).level;
  return runtime +
         (replays_memory(plan, stack) ? peak.bytes : estimated_reserved_bytes(peak, stack));
}

void fill_memory_of_stages(MemoryPrediction& m, const std::vector<StageOfStep>& stages) {
  const auto fullest = std::max_element(stages.begin(), stages.end(),
                                        [](const StageOfStep& a, const StageOfStep& b) {
                                          return a.reserved_bytes < b.reserved_bytes;
                                        });
  m.estimates_fragmentation = true;
  m.peak_allocated_bytes = m.peak_active_bytes = fullest->allocated.bytes;
  m.peak_reserved_bytes = fullest->reserved_bytes;
  m.breakdown_bytes = fullest->allocated.by_category;
  m.peak_at = fmt::format("the backward pass of stage {}", fullest - stages.begin());
  m.total_bytes = m.peak_reserved_bytes + m.runtime_bytes;
  m.fits = m.total_bytes <= m.usable_bytes;
}

void finish_parallel(Prediction& p, const Model& model, const profiles::Profile& profile,
                     const std::vector<StageOfStep>& stages, const std::string& source) {
  const Plan& plan = p.plan;
  fill_stages(p, stages);
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
  set_intervals(p, profile, published_half_width(p, model, profile, source));
  // Software that also runs plans of data parallelism has published peaks of its own there.
  const double memory_width = profiles::model_parallel_uncertainty().memory_half_width;
  if (profile.stack.parallel.megatron && memory_width > 0) {
    set_memory_interval(p.memory, {memory_width, memory_width});
  }
}

}  // namespace shardwright::sim
