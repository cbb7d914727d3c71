// SPDX-License-Identifier: Apache-2.0
// What of a plan's precision the executor trains: known before anything runs, so that predictions
// can say so, too.
#pragma once

#include <string>

#include "sim/core/plan.h"

namespace shardwright {

struct Model;

/// The plan with layers that multiply in bf16 where it has fp8: both have one schedule in the
/// executor, which casts operands just before it multiplies.
Plan with_products_in_bf16(Plan plan);

/// Why the executor does not train so, as a sentence with what it would take; empty: it does.
std::string untrained_precision(const Model& model, const Plan& plan);

/// Throws Error with that sentence.
void check_trained_precision(const Model& model, const Plan& plan);

}  // namespace shardwright
