// SPDX-License-Identifier: Apache-2.0
// The knobs of Plan::parallel and Plan::numerics: entries of the table of sim/core/plan_knobs.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/plan_knobs.h"

namespace shardwright {

/// Each writes nothing where the plan has the default: a run that divides nothing does not speak of
/// it.
std::vector<PlanKnob> parallel_knobs();

/// The plan with what was given of them.
void take_parallelism(const GivenParallelism& given, Plan& plan);

/// "on" or "off".
bool read_switch(std::string_view name, const std::string& text);

template <typename Value, typename Target>
void take(const std::optional<Value>& given, Target& target) {
  if (given) target = *given;
}

}  // namespace shardwright
