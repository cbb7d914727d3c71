// SPDX-License-Identifier: Apache-2.0
// The plan of a run: from the plan file, changed by settings, on the ranks that there are.
#pragma once

#include <string>

#include "cli/machine/execution.h"
#include "cli/run/settings.h"
#include "exec/comm/launch_environment.h"
#include "sim/core/model.h"
#include "sim/core/plan_json.h"

namespace shardwright::cli {

/// Every knob decided and written back to the settings. `document` is the plan file's, empty where
/// there is none. Throws Error naming the setting.
Plan run_plan(RunSettings& settings, const PlanDocument& document, const Model& model,
              const exec::LaunchEnvironment& launch, DeviceKind device);

}  // namespace shardwright::cli
