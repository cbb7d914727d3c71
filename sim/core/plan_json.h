// SPDX-License-Identifier: Apache-2.0
// Plans as files: what `tune --out` writes and `predict --plan`, `run --plan`, `export --plan`
// read.
//
// The document "shardwright.plan/1.0" holds the plan, the model and cluster it was made for, values
// of the profile that were set by hand, and, where known, its prediction and the command that made
// it. The model's configuration, and a cluster that does not ship with the program, are in it as
// they were, so that the file means the same in another folder and on another machine. A knob that
// is not in the file has its default; a knob that this version does not know is an error, because
// ignoring it would run another plan. Which knobs there are is said by sim/core/plan_knobs.cc;
// those of model-parallel plans stand in the same object, and a plan that divides nothing has none
// of them.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/base/json_file.h"
#include "sim/core/plan.h"

namespace shardwright {

struct PlanDocument {
  std::string model;    // name or path, as --model takes it
  std::string cluster;  // as --cluster takes it
  std::string
      model_config{};  // the model's config.json as text; empty: the file that `model` names
  std::string cluster_file{};  // the cluster's file as text; empty: the one that `cluster` names
  Plan plan;
  std::vector<std::string> overrides{};  // "KEY=VALUE" as given to --set
  std::string prediction;                // a JSON object as text; empty: none
  std::string command;                   // the command line that made it; empty: none
  std::string tool_version;
};

/// The "plan" object of plan files and of `tune --json`, with all knobs in a stable order.
nlohmann::ordered_json plan_to_json(const Plan& plan);
/// The same as text, on one line.
std::string plan_text(const Plan& plan);

/// The plan in such an object. Throws Error naming file, key and value; check_plan has still to see
/// whether the knobs fit a model and a cluster.
Plan plan_from_json(const JsonReader& object);

/// Throws Error when the file is none of these documents, or one of a newer major version.
PlanDocument read_plan(const std::filesystem::path& path);
/// As read_plan for text in memory; `name` stands for the file in errors.
PlanDocument parse_plan(std::string_view text, std::string name);

/// The document as text, ending in a newline.
std::string plan_text(const PlanDocument& document);
/// Writes the whole document or nothing.
void write_plan(const std::filesystem::path& path, const PlanDocument& document);

}  // namespace shardwright
