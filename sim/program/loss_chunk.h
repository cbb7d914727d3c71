// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "sim/core/plan.h"
#include "sim/core/stack.h"
#include "sim/core/units.h"

namespace shardwright::sim {

/// What tensor ranks tell each other of a token's loss: maximum, sum of exponents and the target's
/// logit, in fp32.
inline constexpr std::int64_t kLossPartBytes = 12;

/// Of `tokens`, those whose logits exist at once.
inline std::int64_t loss_chunk_tokens(const Plan& plan, const Stack& stack, std::int64_t tokens) {
  if (plan.loss_chunks > 0) return std::max<std::int64_t>(1, ceil_div(tokens, plan.loss_chunks));
  const auto of_stack = static_cast<std::int64_t>(stack.loss_chunk_tokens);
  return of_stack > 0 ? std::min(tokens, of_stack) : tokens;
}

}  // namespace shardwright::sim
