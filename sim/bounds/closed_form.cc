// SPDX-License-Identifier: Apache-2.0
#include "sim/bounds/closed_form.h"

#include <optional>
#include <utility>

#include "sim/bounds/closed_memory.h"
#include "sim/bounds/closed_time.h"
#include "sim/bounds/step_stretches.h"
#include "sim/core/placement.h"
#include "sim/cost/cost.h"
#include "sim/memory/memory.h"
#include "sim/program/program_cache.h"
#include "sim/strategies/lower.h"

namespace shardwright::sim {

struct ClosedForm::State {
  State(Model m, profiles::Profile p)
      : model(std::move(m)),
        profile(std::move(p)),
        costs(profile),
        programs(model, profile.stack, profile.cluster.gpu) {}

  Model model;
  profiles::Profile profile;
  CostModel costs;
  ProgramCache programs;
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

  void lower_with(const Plan& plan, Schedule& schedule, std::vector<OpCost>& op_costs) {
    lower(model, plan, profile.stack, profile.cluster, programs.at(plan), schedule);
    costs.cost(schedule, op_costs);
  }
};

ClosedForm::ClosedForm(Model model, profiles::Profile profile)
    : state_(std::make_unique<State>(std::move(model), std::move(profile))) {}
ClosedForm::~ClosedForm() = default;
ClosedForm::ClosedForm(ClosedForm&&) noexcept = default;
ClosedForm& ClosedForm::operator=(ClosedForm&&) noexcept = default;

FamilyBounds ClosedForm::family(const Plan& plan) {
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
  FamilyBounds bounds;
  if (plan.ckpt_stride == 1 && recomputes) {
    bounds.allocated_bytes = memory.peaks_of_prefixes();
  } else {
    for (std::int64_t k = 0; k <= most; ++k)
      bounds.allocated_bytes.push_back(memory.peak(k, plan.ckpt_stride));
  }
  for (std::int64_t k = 0; k <= most; ++k) bounds.step_ns.push_back(time.bound_ns(k));
  return bounds;
}

Bytes ClosedForm::allocated_bytes(const Plan& plan) {
  State& s = *state_;
  check_plan(plan, s.model, s.profile.cluster.gpus_per_node);
  lower(s.model, plan, s.profile.stack, s.profile.cluster, s.programs.at(plan), s.all);
  const bool is_static = s.profile.stack.memory == MemoryManager::kStatic;
  return is_static ? static_memory_bytes(s.all) : allocated_peak(s.all).level.bytes;
}

}  // namespace shardwright::sim
