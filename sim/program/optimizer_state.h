// SPDX-License-Identifier: Apache-2.0
// What an optimizer keeps of a parameter beside its master copy, and what an update moves and
// multiplies.
//
//   adamw        two moments in the plan's type
//   adamw-8bit   two moments of one byte, with a fp32 scale for every 256 (bitsandbytes)
//   sgd          one momentum in the plan's type
//   muon         one momentum; five Newton-Schulz steps orthogonalize the update of a matrix
//                [m, n], m <= n, with 4 m^2 n + 2 m^3 operations each (Jordan et al. 2024)
#pragma once

#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/stack.h"

namespace shardwright::sim {

/// Of a parameter's accumulated gradient. Software that adds gradients up inside products reduces
/// the same buffer: in the plan's type, or in the stack's where that is narrower.
double gradient_bytes(const Plan& plan, const Stack& stack);

/// The same, and what software keeps beside it in the type of the weights.
double kept_gradient_bytes(const Plan& plan, const Stack& stack);

/// Bytes of state a parameter, without the master copy.
double moment_bytes(const Plan& plan);

/// Operations a parameter beyond that; of muon, with matrices as wide as the model.
double update_flops(const Model& model, const Plan& plan);

}  // namespace shardwright::sim
