// SPDX-License-Identifier: Apache-2.0
// A plan that comes from elsewhere than a file of --plan, changed by the flags of the command line.
#pragma once

#include "cli/flags/plan_flags.h"
#include "sim/core/plan_json.h"

namespace shardwright::cli {

/// As resolve() with a plan file of this content.
sim::Job resolve_onto(const PlanFlags& flags, const PlanDocument& document);

}  // namespace shardwright::cli
