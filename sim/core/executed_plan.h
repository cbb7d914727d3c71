// SPDX-License-Identifier: Apache-2.0
// Which plans the executor runs: data parallelism with tensor and sequence parallelism and
// pipelines.
#pragma once

#include <string>
#include <string_view>

#include "sim/core/model.h"
#include "sim/core/plan.h"

namespace shardwright {

/// What of a plan the executor does not run, as "lora is 8"; empty: nothing.
std::string beyond_execution(const Plan& plan);

/// Throws Error that ends in `expected` where a plan asks for what the executor does not run.
void check_executed(const Plan& plan, std::string_view expected);

/// Why `run` does not train a model with a plan, of which every knob is decided, as a sentence;
/// empty: it does. The precision that it trains in first, then the model and the rest.
std::string why_not_run(const Model& model, const Plan& plan);
/// Throws Error with what that finds and what is expected instead.
void check_run(const Plan& plan, const Model& model);

}  // namespace shardwright
