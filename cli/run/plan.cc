// SPDX-License-Identifier: Apache-2.0
#include "cli/run/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "sim/core/base/error.h"
#include "sim/core/executed_plan.h"
#include "sim/core/plan_knobs.h"

namespace shardwright::cli {
namespace {

constexpr std::int64_t kMostRanks = 1 << 20;

/// What the settings say of the plan, by the table that reads flags, too.
GivenKnobs given_knobs(const RunSettings& settings, const Model& model) {
  GivenKnobs knobs;
  for (const PlanKnob& knob : plan_knobs()) {
    const std::string key(knob.name);
    if (knob.read && settings.knows(key) && settings.given(key)) {
      knob.read(knobs, settings.at(key).name, settings.text(key));
    }
  }
  if (knobs.strategies.size() > 1) settings.word("strategy", strategy_names());
  if (knobs.ckpt_layers && !knobs.ckpt_layers->all)
    settings.count("ckpt-layers", {0, model.layers});
  return knobs;
}

/// A run file says how a run began; flags and the environment say what is asked for now.
bool is_of_run_file(const RunSettings& settings, const std::string& key) {
  return settings.given(key) && settings.at(key).name.find(" in ") != std::string::npos;
}

std::int64_t decide_ranks(RunSettings& settings, const Plan& plan, bool from_file,
                          const exec::LaunchEnvironment& launch) {
  // The launcher may start another number than there was.
  const bool was_other =
      is_of_run_file(settings, "ranks") && launch.launcher != exec::Launcher::kNone;
  const bool given = settings.given("ranks") && !was_other;
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

/// Keeps the sequences of a step where a launcher starts another number of ranks than the plan, or
/// the run file, was for: an elastic launcher goes on with what is left.
void keep_batch(const RunSettings& settings, std::int64_t before,
                const exec::LaunchEnvironment& launch, Plan& plan) {
  const bool asked = settings.given("grad-accum") && !is_of_run_file(settings, "grad-accum");
  if (launch.launcher == exec::Launcher::kNone || before == plan.gpus || asked) return;
  const std::int64_t replica = plan.parallel.replica();
  const std::int64_t micro_steps = before / replica * plan.grad_accum;
  if (micro_steps * replica % plan.gpus != 0) {
    throw Error(
        fmt::format("{} started {} processes, but a step has {} micro-batches{}; expected a "
                    "number of processes that divides them, or --grad-accum",
                    name_of(launch.launcher), plan.gpus, micro_steps,
                    replica > 1 ? fmt::format(" for {} ranks each", replica) : ""));
  }
  plan.grad_accum = micro_steps * replica / plan.gpus;
}

}  // namespace

Plan run_plan(RunSettings& settings, const PlanDocument& document, const Model& model,
              const exec::LaunchEnvironment& launch, DeviceKind device) {
  const std::string& file = settings.text("plan");
  const bool from_file = !file.empty();
  Plan plan = document.plan;
  if (!from_file) {
    plan.ckpt_layers = 0;
    plan.param_dtype = device == DeviceKind::kCuda ? DType::kBf16 : DType::kFp32;
    // A processor takes minutes for a step of the length that predict and tune take.
    plan.seq_len = std::min(plan.seq_len, model.max_positions);
  }
  const std::int64_t ranks = decide_ranks(settings, plan, from_file, launch);
  const std::int64_t before =
      settings.given("ranks") ? settings.count("ranks", {1, kMostRanks}) : plan.gpus;
  if (plan.shard_group == plan.gpus || plan.shard_group > ranks) plan.shard_group = 0;
  plan.gpus = ranks;
  if (!from_file && ranks == 1) plan.strategy = Strategy::kSingle;

  const GivenKnobs knobs = given_knobs(settings, model);
  if (!knobs.strategies.empty()) plan.strategy = knobs.strategies.front();
  if (!from_file && knobs.parallel.precision == Precision::kFp8) plan.param_dtype = DType::kBf16;
  plan = with_knobs(std::move(plan), knobs, model.layers);
  if (const std::string why = why_not_run(model, plan); !why.empty()) {
    const bool says_the_file = from_file && why_not_run(model, document.plan) == why;
    throw InvalidPlan(says_the_file ? fmt::format("{}: {}", file, why) : why);
  }
  if (from_file || settings.given("ranks")) keep_batch(settings, before, launch, plan);

  const std::string origin = from_file ? file : "default";
  settings.decide("ranks", fmt::format("{}", plan.gpus),
                  launch.launcher == exec::Launcher::kNone ? origin : name_of(launch.launcher));
  for (const PlanKnob& knob : plan_knobs()) {
    const std::string key(knob.name);
    if (!knob.write || !settings.knows(key)) continue;
    // Without fp8 layers multiply in the parameters' type.
    if (key == "precision" && plan.numerics.precision != Precision::kFp8) continue;
    std::string value = knob.write(plan);
    if (!value.empty()) settings.decide(key, std::move(value), origin);
  }
  return plan;
}

}  // namespace shardwright::cli
