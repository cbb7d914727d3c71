// SPDX-License-Identifier: Apache-2.0
// Plan::parallel and Plan::numerics in a plan file: the flags' names with underscores, in the same
// object as the rest of the plan. A plan that divides nothing has none of these keys.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "sim/core/json_file.h"
#include "sim/core/plan.h"

namespace shardwright {

void parallel_to_json(const Plan& plan, nlohmann::ordered_json& object);
void parallel_from_json(const JsonReader& object, Plan& plan);

}  // namespace shardwright
