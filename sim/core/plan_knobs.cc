// SPDX-License-Identifier: Apache-2.0
#include "sim/core/plan_knobs.h"

#include <fmt/core.h>

#include <algorithm>

#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/model.h"

namespace shardwright {
namespace {

void take_recompute(const GivenKnobs& knobs, std::int64_t layers, Plan& plan) {
  if (knobs.recompute) {
    plan.recompute = knobs.recompute->recompute;
    plan.pieces = knobs.recompute->pieces;
    if (plan.recompute == Recompute::kNone) {
      plan.ckpt_layers = 0;
    } else if (plan.ckpt_layers == 0) {
      plan.ckpt_layers = layers;
    }
  }
  if (knobs.ckpt_layers) {
    plan.ckpt_stride = 1;
    plan.ckpt_layers = knobs.ckpt_layers->of(layers);
    if (plan.ckpt_layers > 0 && plan.recompute == Recompute::kNone && !knobs.recompute) {
      plan.recompute = Recompute::kFull;
    }
  }
  if (plan.ckpt_layers == 0) {
    plan.recompute = Recompute::kNone;
    plan.pieces = 0;
  }
}

}  // namespace

const PlanKnob& plan_knob(std::string_view name) {
  const std::vector<PlanKnob>& knobs = plan_knobs();
  const auto found = std::find_if(knobs.begin(), knobs.end(),
                                  [&](const PlanKnob& knob) { return knob.name == name; });
  SHARDWRIGHT_CHECK(found != knobs.end(), "there is no knob '{}'", name);
  return *found;
}

std::int64_t usual_seq_len(const Model& model, bool fine_tunes) {
  constexpr std::int64_t kMostToTrain = 8192, kMostToFineTune = 2048;
  return std::min(model.max_positions, fine_tunes ? kMostToFineTune : kMostToTrain);
}

Plan with_knobs(Plan plan, const GivenKnobs& knobs, std::int64_t layers) {
  if (knobs.buffers) plan.prefetch = *knobs.buffers - 1;
  for (const PlanKnob& knob : plan_knobs()) {
    if (knob.take) knob.take(knobs, plan);
  }
  if (knobs.prefetch && plan.prefetch >= plan.buffers) {
    throw Error(fmt::format(
        "prefetch is {}, but {} {} at most {} ahead of the unit that computes, expected at most {}",
        plan.prefetch, plan.buffers, plan.buffers == 1 ? "buffer holds" : "buffers hold",
        plan.buffers - 1, plan.buffers - 1));
  }
  take_recompute(knobs, layers, plan);
  return plan;
}

void take_parallelism(const GivenParallelism& given, Plan& plan) {
  GivenKnobs knobs;
  knobs.parallel = given;
  for (const PlanKnob& knob : plan_knobs()) {
    if (knob.divides && knob.take) knob.take(knobs, plan);
  }
}

}  // namespace shardwright
