// SPDX-License-Identifier: Apache-2.0
#include "cli/render/words/runs_here.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "sim/core/executed_plan.h"
#include "sim/core/plan_knobs.h"
#include "sim/pipeline/places_free.h"
#include "sim/pipeline/step_program.h"

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
       {"strategy",    "shard-group", "seq-len",        "micro-batch",  "grad-accum",
        "ckpt-layers", "recompute",   "param-dtype",    "reduce-dtype", "moment-dtype",
        "buffers",     "prefetch",    "precision",      "fp8-recipe",   "tp",
        "sp",          "pp",          "virtual-stages", "pp-schedule",  "pp-layout",
        "rank-order",  "sum-shape"}) {
    const PlanKnob& knob = plan_knob(name);
    const std::string value = knob.write(plan);
    const bool says = name == "strategy" || name == "seq-len" || name == "param-dtype";
    if (!value.empty() && (says || value != knob.write(usual)))
      command += fmt::format(" --{} {}", name, value);
  }
  if (!inputs.model.dropout.empty()) command += " --dropout none";
  return command + " --data FILE";
}

/// What `run` would find before the first step, of as many micro-batches as fill a pipeline.
std::string fault_of_step(const sim::Job& inputs, Plan plan) {
  if (plan.stack != kOwnStack) return "";
  plan.grad_accum = std::min(plan.grad_accum, 4 * plan.parallel.pp);
  try {
    sim::check_places_free(sim::executed_step(inputs.model, plan,
                                              profiles::load_stack(std::string(kOwnStack)).stack,
                                              inputs.profile.cluster.gpus_per_node)
                               .stages);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

RunsHere runs_here(const sim::Job& inputs, const Plan& plan) {
  RunsHere here;
  here.why_not = why_not_run(inputs.model, plan);
  if (here.possible()) here.why_not = fault_of_step(inputs, plan);
  if (here.possible()) here.command = command_of(inputs, plan);
  return here;
}

nlohmann::ordered_json runs_here_json(const RunsHere& here) {
  nlohmann::ordered_json result{
      {"possible", here.possible()}, {"command", nullptr}, {"why_not", nullptr}};
  result[here.possible() ? "command" : "why_not"] = here.possible() ? here.command : here.why_not;
  return result;
}

}  // namespace shardwright::cli
