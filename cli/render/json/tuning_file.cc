// SPDX-License-Identifier: Apache-2.0
#include "cli/render/json/tuning_file.h"

#include "sim/core/base/json_file.h"
#include "sim/core/base/schema.h"
#include "sim/core/plan_json.h"

namespace shardwright::cli {
namespace {

TunedModel read_model(const JsonReader& entry) {
  const JsonReader inputs = entry.require_object("prediction").require_object("inputs");
  return {inputs.require<std::string>("model"), inputs.require<std::int64_t>("parameters"),
          inputs.require<std::int64_t>("layers")};
}

TunedPlan read_plan_entry(const JsonReader& entry) {
  TunedPlan tuned;
  tuned.plan = plan_from_json(entry.require_object("plan"));
  const JsonReader prediction = entry.require_object("prediction");
  tuned.iteration_s = prediction.require<double>("iteration_time_s", above(0.0));
  tuned.tokens_per_s = prediction.require<double>("tokens_per_s", above(0.0));
  const JsonReader memory = prediction.require_object("memory");
  tuned.total_bytes = memory.require<double>("total_bytes", at_least(0.0));
  tuned.usable_bytes = memory.require<double>("usable_bytes", above(0.0));
  tuned.cost = entry.optional<double>("cost", 0);
  return tuned;
}

}  // namespace

TuningSummary read_tuning(const std::filesystem::path& path) {
  const JsonFile file = JsonFile::load(path);
  const JsonReader root = file.root();
  require_schema(root, "shardwright.tuning", 1);
  TuningSummary summary;
  summary.objective = root.optional<std::string>("objective", "");
  summary.considered = root.optional<double>("considered", 0);
  summary.seconds = root.optional<double>("seconds", 0);
  for (const JsonReader& entry : root.require_array("top")) {
    if (!summary.model) summary.model = read_model(entry);
    summary.top.push_back(read_plan_entry(entry));
  }
  for (const JsonReader& entry : root.require_array("pareto"))
    summary.pareto.push_back(read_plan_entry(entry));
  summary.why = root.require_list<std::string>("why");
  return summary;
}

}  // namespace shardwright::cli
