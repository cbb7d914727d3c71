// SPDX-License-Identifier: Apache-2.0
#include "cli/render/words/runs_here.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string_view>

#ifndef SHARDWRIGHT_PLANNER_ONLY
#include "cli/machine/execution.h"
#endif
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "sim/core/executed_plan.h"
#include "sim/core/plan_knobs.h"
#include "sim/pipeline/places_free.h"
#include "sim/program/stages.h"

namespace shardwright::cli {
namespace {

/// In single quotes where a shell would read it otherwise.
std::string quoted(const std::string& word) {
  const bool plain = word.find_first_not_of(
                         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                         "0123456789-_./,") == std::string::npos;
  if (plain && !word.empty()) return word;
  std::string text = "'";
  for (const char letter : word)
    text += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return text + "'";
}

std::string command_of(const sim::Job& inputs, const Plan& plan) {
  const Plan usual;
  std::string command =
      fmt::format("shardwright run --model {} --ranks {}", quoted(inputs.model_name), plan.gpus);
  for (const std::string_view name :
       {"strategy",    "shard-group", "seq-len",        "micro-batch",   "grad-accum",
        "ckpt-layers", "recompute",   "param-dtype",    "reduce-dtype",  "moment-dtype",
        "buffers",     "prefetch",    "precision",      "fp8-recipe",    "tp",
        "sp",          "pp",          "virtual-stages", "pp-schedule",   "pp-layout",
        "rank-order",  "sum-shape",   "master-dtype",   "deterministic", "loss-chunks"}) {
    const PlanKnob& knob = plan_knob(name);
    const std::string value = knob.write(plan);
    const bool says = name == "strategy" || name == "seq-len" || name == "param-dtype";
    if (!value.empty() && (says || value != knob.write(usual)))
      command += fmt::format(" --{} {}", name, value);
  }
  if (!inputs.model.dropout.empty()) command += " --dropout none";
  return command + " --data FILE";
}

}  // namespace

RunsHere runs_here(const sim::Job& inputs, const Plan& plan) {
  RunsHere here;
  Plan told = plan;
  told.grad_accum = sim::telling_micro_batches(plan);
  try {
    [[maybe_unused]] const sim::StepProgram step =
        sim::proven_step(inputs.model, told, profiles::load_stack(std::string(kOwnStack)).stack,
                         inputs.profile.cluster.gpus_per_node);
    here.command = command_of(inputs, plan);
#ifdef SHARDWRIGHT_PLANNER_ONLY
    here.why_not_here = "this build plans alone, expected one that runs, too (SHARDWRIGHT_RUN=ON)";
#else
    here.why_not_here = why_not_here(execution_offer(), plan, step.stages);
#endif
  } catch (const Error& error) {
    here.why_not = error.what();
  }
  return here;
}

nlohmann::ordered_json runs_here_json(const RunsHere& here) {
  const auto text = [](const std::string& words) {
    return words.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(words);
  };
  return {{"possible", here.possible()},
          {"command", text(here.command)},
          {"why_not", text(here.why_not)},
          {"why_not_here", text(here.why_not_here)}};
}

}  // namespace shardwright::cli
