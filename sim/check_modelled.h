// SPDX-License-Identifier: Apache-2.0
// What a plan asks for beyond data parallelism, and what of it is modelled.
#pragma once

#include "profiles/profile.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"

namespace shardwright::sim {

/// Throws Error where the framework or the GPU does not do what the plan asks for, or nothing
/// models it yet.
void check_modelled(const Model& model, const Plan& plan, const profiles::Profile& profile);

}  // namespace shardwright::sim
