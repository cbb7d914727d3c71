// SPDX-License-Identifier: Apache-2.0
// In which type backward writes weight gradients, for the programs that count its traffic and the
// strategies that reduce them.
//
// Where gradients are reduced in fp32, GEMMs of the native framework, and of those that add to the
// sum of gradients themselves, write fp32: nothing is rounded to bf16 and widened again. Others
// write the compute type and cast.
#pragma once

#include "sim/core/dtype.h"
#include "sim/core/plan.h"
#include "sim/core/stack.h"

namespace shardwright::sim {

/// Whether GEMMs of weight gradients add to the sum over micro-batches in their own kernel.
inline bool adds_in_product(const Stack& stack) {
  return stack.optimizer.bucketed && stack.parallel.accumulates_in_product;
}

inline DType gradient_dtype(const Plan& plan, const Stack& stack) {
  const bool straight = (adds_in_product(stack) || stack.memory == MemoryManager::kStatic) &&
                        plan.reduce_dtype == DType::kFp32;
  return straight ? plan.reduce_dtype : plan.param_dtype;
}

}  // namespace shardwright::sim
