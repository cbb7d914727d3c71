// SPDX-License-Identifier: Apache-2.0
#include "cli/render/tuning_file.h"

#include "sim/core/base/json_file.h"
#include "sim/core/plan_json.h"

namespace shardwright::cli {
namespace {

/// Throws unless it has what is drawn of a plan.
void check_plan(const JsonReader& entry) {
  plan_from_json(entry.require_object("plan"));
  const JsonReader prediction = entry.require_object("prediction");
  for (const char* key : {"iteration_time_s", "tokens_per_s", "mfu"})
    prediction.require<double>(key, above(0.0));
  prediction.require_object("memory").require<double>("total_bytes", at_least(0.0));
  prediction.require_object("inputs").require<std::string>("plan_words");
}

}  // namespace

TuningFile read_tuning(const std::filesystem::path& path) {
  TuningFile tuning{JsonFile::load(path), std::nullopt};
  const JsonReader root = tuning.file.root();
  require_schema(root, "shardwright.tuning", 1);
  for (const char* key : {"considered", "simulated", "seconds"})
    root.require<double>(key, at_least(0.0));
  root.require_list<std::string>("why");
  for (const char* plans : {"top", "pareto"}) {
    for (const JsonReader& entry : root.require_array(plans)) {
      check_plan(entry);
      const JsonReader inputs = entry.require_object("prediction").require_object("inputs");
      if (!tuning.model) {
        tuning.model = {inputs.require<std::string>("model"),
                        inputs.require<std::int64_t>("parameters"),
                        inputs.require<std::int64_t>("layers")};
      }
    }
  }
  return tuning;
}

}  // namespace shardwright::cli
