// SPDX-License-Identifier: Apache-2.0
#include "cli/export/as_run.h"

#include <fmt/core.h>

#include "profiles/profile.h"
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"

namespace shardwright::cli {

AsRun predict_as_run(const sim::Job& inputs, const TrainerSettings& settings) {
  if (!inputs.model.kinds.empty()) {
    throw Error(
        fmt::format("model '{}' {}, for which no trainer's settings are written, expected a "
                    "model whose layers are alike",
                    inputs.model.name, inputs.model.planning_only));
  }
  AsRun as_run{inputs, {}, {}};
  as_run.inputs.plans = {settings.as_run};
  try {
    std::vector<std::string>& overrides = as_run.inputs.overrides;
    overrides.insert(overrides.end(), settings.overrides.begin(), settings.overrides.end());
    as_run.inputs.profile = profiles::make_profile(
        inputs.cluster_file, profiles::load_stack(settings.as_run.stack), overrides);
    check_plan(settings.as_run, inputs.model, as_run.inputs.profile.cluster.gpus_per_node);
    as_run.prediction = sim::predict(inputs.model, as_run.inputs.profile, settings.as_run);
  } catch (const InvalidPlan& error) {
    as_run.refusal = error.what();
  }
  return as_run;
}

}  // namespace shardwright::cli
