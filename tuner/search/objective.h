// SPDX-License-Identifier: Apache-2.0
// What "best" means. Every objective is a score to make small, known exactly once a plan is
// predicted in full and bounded from below by the closed form.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/plan.h"
#include "sim/core/units.h"

namespace shardwright::tuner {

enum class Objective {
  kTime,     // seconds per token
  kCost,     // dollars per token; GPU seconds per token where the price is unknown
  kHeadroom  // bytes of GPU memory in use
};

std::string_view name_of(Objective objective);
std::vector<std::string> objective_names();
std::optional<Objective> objective_from(std::string_view name);

/// Tokens that all GPUs train on in an optimizer step.
double tokens_per_step(const Plan& plan);

/// `step_s` and `total_bytes` may be lower bounds; the score then is one, too.
double score_of(Objective objective, const Plan& plan, double step_s, Bytes total_bytes,
                double usd_per_gpu_hour);

}  // namespace shardwright::tuner
