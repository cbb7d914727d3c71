// SPDX-License-Identifier: Apache-2.0
#include "sim/program/optimizer_state.h"

#include <algorithm>

#include "sim/program/low_precision.h"

namespace shardwright::sim {

double gradient_bytes(const Plan& plan, const Stack& stack) {
  return std::min(f(bytes_of(plan.reduce_dtype)), stack.parallel.gradient_bytes);
}

double kept_gradient_bytes(const Plan& plan, const Stack& stack) {
  const double small = f(bytes_of(plan.param_dtype));
  const double accumulated = gradient_bytes(plan, stack);
  return accumulated + (stack.parallel.keeps_small_gradients && accumulated > small ? small : 0);
}

double moment_bytes(const Plan& plan) {
  const double one = f(bytes_of(plan.moment_dtype));
  switch (plan.numerics.optimizer) {
    case Optimizer::kAdamw:
      return 2 * one;
    case Optimizer::kAdamw8bit:
      return 2 * (1 + 4.0 / 256);
    case Optimizer::kMuon:
    case Optimizer::kSgd:
      break;
  }
  return one;
}

double update_flops(const Model& model, const Plan& plan) {
  if (plan.numerics.optimizer != Optimizer::kMuon) return 0;
  constexpr double kSteps = 5;
  const double wide = f(model.is_moe() ? model.experts.ffn : model.ffn);
  const double m = std::min(wide, f(model.hidden)), n = std::max(wide, f(model.hidden));
  return kSteps * (4 * m + 2 * m * m / n);
}

}  // namespace shardwright::sim
