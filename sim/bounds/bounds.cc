// SPDX-License-Identifier: Apache-2.0
#include "sim/bounds/bounds.h"

#include <algorithm>
#include <optional>

#include "sim/bounds/closed_form.h"
#include "sim/bounds/step_stretches.h"
#include "sim/core/base/numbers.h"
#include "sim/core/pipeline.h"
#include "sim/core/placement.h"
#include "sim/cost/cost.h"
#include "sim/memory/memory.h"
#include "sim/memory/stage_memory.h"
#include "sim/strategies/lower.h"

namespace shardwright::sim {

struct Bounds::State {
  State(const Model& m, const profiles::Profile& p, ProgramCache& cache)
      : model(m), profile(p), programs(cache), costs(p), memory(m, p, cache), passes(m, p) {}

  const Model& model;
  const profiles::Profile& profile;
  ProgramCache& programs;
  CostModel costs;
  StageMemory memory;
  UnitBounds passes;
  Schedule none, all;
  std::vector<OpCost> none_costs, all_costs;
  StretchFinder finder;
  StepStretches stretches;        // of `none`
  std::optional<Plan> none_plan;  // what `none` was lowered from

  /// Families that differ in what they recompute share the schedule without checkpoints.
  void lower_none(Plan plan) {
    plan.ckpt_layers = 0;
    plan.recompute = Recompute::kNone;
    plan.pieces = 0;
    if (none_plan == plan) return;
    none_plan.reset();
    lower_with(plan, none, none_costs);
    stretches = finder.find(none, none_costs);
    none_plan = plan;
  }

  /// Of stages up to the first one where more than `most` is alive.
  Bytes fullest_bytes(const Plan& plan, const std::vector<ChunkContent>& parts, Bytes most) {
    Bytes fullest = 0;
    for (const MemoryLevel& stage :
         memory.least_levels(plan, parts, StageMemory::Stages::kFullest, most))
      fullest = std::max(fullest, least_reserved_bytes(stage.peak(), plan, profile.stack));
    return fullest;
  }

  void lower_with(const Plan& plan, Schedule& schedule, std::vector<OpCost>& op_costs) {
    lower(model, plan, profile.stack, profile.cluster, programs.at(plan), schedule);
    costs.cost(schedule, op_costs);
  }
};

Bounds::Bounds(const Model& model, const profiles::Profile& profile, ProgramCache& programs)
    : state_(std::make_unique<State>(model, profile, programs)) {}
Bounds::~Bounds() = default;

FamilyBounds Bounds::family(const Plan& plan) {
  State& s = *state_;
  Plan edge = plan;
  edge.ckpt_layers = 0;
  check_plan(edge, s.model, s.profile.cluster.gpus_per_node);
  edge.ckpt_stride = 1;
  s.lower_none(edge);
  const bool recomputes = plan.recompute != Recompute::kNone;
  if (recomputes) {
    edge.ckpt_layers = s.model.layers;
    s.lower_with(edge, s.all, s.all_costs);
  }
  const Schedule& all = recomputes ? s.all : s.none;
  const std::vector<OpCost>& all_costs = recomputes ? s.all_costs : s.none_costs;

  const ClosedMemory memory(s.none, all, s.profile.stack.memory);
  const ClosedTime time(s.stretches, s.none, s.none_costs, all, all_costs);
  const std::int64_t most = recomputes ? ceil_div(s.model.layers, plan.ckpt_stride) : 0;
  std::vector<MemoryPeak> peaks;
  if (plan.ckpt_stride == 1 && recomputes) {
    peaks = memory.peaks_of_prefixes();
  } else {
    for (std::int64_t k = 0; k <= most; ++k) peaks.push_back(memory.peak(k, plan.ckpt_stride));
  }
  const Bytes runtime = runtime_bytes(s.profile, plan);
  const double scale = scale_factor(s.profile, plan);
  FamilyBounds bounds;
  for (const MemoryPeak& peak : peaks)
    bounds.least_bytes.push_back(runtime + least_reserved_bytes(peak, plan, s.profile.stack));
  for (std::int64_t k = 0; k <= most; ++k)
    bounds.least_s.push_back(static_cast<double>(time.bound_ns(k)) * 1e-9 * scale);
  return bounds;
}

double Bounds::least_pipeline_s(const Plan& plan) {
  State& s = *state_;
  return pipeline_bound_s(s.model, s.profile, plan, s.passes) * scale_factor(s.profile, plan);
}

Bytes Bounds::least_bytes(const Plan& plan) {
  State& s = *state_;
  const std::vector<ChunkContent> parts = partition_layers(s.model, plan, s.profile.stack);
  return runtime_bytes(s.profile, plan) + s.fullest_bytes(plan, parts, StageMemory::kUnlimited);
}

Bytes Bounds::least_bytes_or_too_many(const Plan& plan) {
  State& s = *state_;
  const Bytes runtime = runtime_bytes(s.profile, plan);
  const std::vector<ChunkContent> parts = partition_layers(s.model, plan, s.profile.stack);
  const Bytes held = s.memory.held_bytes(plan, parts) + runtime;
  const Bytes most = s.profile.cluster.memory_bytes_per_rank(plan.gpus);
  return held > most ? held : runtime + s.fullest_bytes(plan, parts, most - runtime);
}

namespace {

/// The inequality of the header; stages are added one by one.
class PipelineBound {
 public:
  explicit PipelineBound(const PipelineShape& shape)
      : ordered_(shape.info().order == ChunkOrder::kLoop),
        splits_(shape.info().splits_backward),
        passes_(shape.passes()) {}

  /// `deferred_ns`: of the step, what the chunk computes after its passes.
  void add(const UnitBounds::Chunk& chunk, Nanoseconds deferred_ns) {
    const Nanoseconds forward = chunk.forward.least_ns(), backward = chunk.backward.least_ns();
    const Nanoseconds delayed = std::min(backward, chunk.backward.delayed_ns);
    if (is_first_) {
      first_forward_ = forward;
      first_backward_ = splits_ ? backward - delayed : backward;
      is_first_ = false;
    }
    busy_ += forward + backward;
    delayed_ += delayed;
    deferred_ += deferred_ns;
  }

  void end_stage() {
    const Nanoseconds arrives = ordered_ ? forward_before_ : 0;
    const Nanoseconds returns =
        ordered_ ? std::max<Nanoseconds>(0, backward_before_ - deferred_) : 0;
    if (splits_) {
      least_ = std::max(
          {least_, arrives + passes_ * busy_, arrives + passes_ * (busy_ - delayed_) + returns});
    } else {
      least_ = std::max(least_, arrives + passes_ * busy_ + returns);
    }
    forward_before_ += first_forward_;
    backward_before_ += first_backward_;
    busy_ = delayed_ = deferred_ = 0;
    is_first_ = true;
  }

  Nanoseconds least_ns() const { return least_; }

 private:
  bool ordered_, splits_, is_first_ = true;
  Nanoseconds passes_, least_ = 0, busy_ = 0, delayed_ = 0, deferred_ = 0;
  Nanoseconds first_forward_ = 0, first_backward_ = 0, forward_before_ = 0, backward_before_ = 0;
};

}  // namespace

double pipeline_bound_s(const Model& model, const profiles::Profile& profile, const Plan& plan,
                        UnitBounds& passes) {
  const PipelineShape shape = pipeline_shape(plan);
  const std::vector<ChunkContent> parts = partition_layers(model, plan, profile.stack);
  const UnitBounds::Units units = passes.units(plan);
  const std::int64_t most = profile.stack.parallel.userbuffers.deferred_head_gradients;
  PipelineBound bound(shape);
  for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      const UnitBounds::Chunk chunk = passes.of(units, of_chunk(parts, shape, {stage, c}));
      bound.add(chunk, std::min(most, plan.grad_accum) * chunk.head_delayed_ns);
    }
    bound.end_stage();
  }
  return seconds_of(bound.least_ns()) + profile.stack.host.step_s;
}

}  // namespace shardwright::sim
