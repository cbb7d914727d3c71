// SPDX-License-Identifier: Apache-2.0
#include "cli/run/plan.h"

#include <fmt/core.h>

#include <utility>

#include "sim/core/plan_knobs.h"

namespace shardwright::cli {
namespace {

constexpr std::int64_t kMostRanks = 1 << 20;

/// What the settings say of the plan, by the table that reads flags, too.
GivenKnobs given_knobs(const RunSettings& settings, const Model& model) {
  GivenKnobs knobs;
  for (const PlanKnob& knob : plan_knobs()) {
    const std::string key(knob.name);
    if (settings.knows(key) && settings.given(key)) {
      knob.read(knobs, settings.at(key).name, settings.text(key));
    }
  }
  if (knobs.strategies.size() > 1) settings.word("strategy", strategy_names());
  if (knobs.ckpt_layers && !knobs.ckpt_layers->all)
    settings.count("ckpt-layers", {0, model.layers});
  return knobs;
}

std::int64_t decide_ranks(RunSettings& settings, const Plan& plan, bool from_file,
                          const exec::LaunchEnvironment& launch) {
  const bool given = settings.given("ranks");
  const std::int64_t wished = given       ? settings.count("ranks", {1, kMostRanks})
                              : from_file ? plan.gpus
                                          : launch.ranks;
  if (launch.launcher == exec::Launcher::kNone) return wished;
  if (given && wished != launch.ranks) {
    settings.fail("ranks", fmt::format("{}, the number of processes that {} started", launch.ranks,
                                       name_of(launch.launcher)));
  }
  return launch.ranks;
}

}  // namespace

Plan run_plan(RunSettings& settings, const PlanDocument& document, const Model& model,
              const exec::LaunchEnvironment& launch, DeviceKind device) {
  const std::string& file = settings.text("plan");
  const bool from_file = !file.empty();
  Plan plan = document.plan;
  if (from_file)
    refuse_parallelism(plan, "run trains with data parallelism only",
                       fmt::format("a plan without it in {}", file));
  if (!from_file) {
    plan.ckpt_layers = 0;
    plan.param_dtype = device == DeviceKind::kCuda ? DType::kBf16 : DType::kFp32;
    plan.seq_len = usual_seq_len(model);
  }
  const std::int64_t ranks = decide_ranks(settings, plan, from_file, launch);
  if (plan.shard_group == plan.gpus || plan.shard_group > ranks) plan.shard_group = 0;
  plan.gpus = ranks;
  if (!from_file && ranks == 1) plan.strategy = Strategy::kSingle;

  const GivenKnobs knobs = given_knobs(settings, model);
  if (!knobs.strategies.empty()) plan.strategy = knobs.strategies.front();
  plan = with_knobs(std::move(plan), knobs, model.layers);

  const std::string origin = from_file ? file : "default";
  settings.decide("ranks", fmt::format("{}", plan.gpus),
                  launch.launcher == exec::Launcher::kNone ? origin : name_of(launch.launcher));
  for (const PlanKnob& knob : plan_knobs()) {
    const std::string key(knob.name);
    std::string value = knob.write(plan);
    if (settings.knows(key) && !value.empty()) settings.decide(key, std::move(value), origin);
  }
  return plan;
}

}  // namespace shardwright::cli
