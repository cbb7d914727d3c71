// SPDX-License-Identifier: Apache-2.0
// Bytes that a rank holds for the whole step: parameters, master copy, gradients and optimizer
// state.
#pragma once

#include <cstdint>

#include "sim/strategies/step_writer.h"

namespace shardwright::sim {

/// Declares optimizer state and, where it differs from what is computed with, the master copy, over
/// `owned_elements` parameters.
inline void declare_optimizer_state(StepWriter& w, std::int64_t owned_elements) {
  const Plan& plan = w.plan();
  if (plan.offload == Offload::kOptimizer) return;
  w.persistent(MemoryCategory::kMaster, bytes_of(plan.master_dtype) * owned_elements,
               "master parameters");
  w.persistent(MemoryCategory::kOptimizer, 2 * bytes_of(plan.moment_dtype) * owned_elements,
               "Adam moments");
}

/// A compute copy exists beside the master when their dtypes differ.
inline bool has_compute_copy(const Plan& plan) {
  return plan.param_dtype != plan.master_dtype;
}

/// Traffic of converting one element from dtype `from` to `to`.
constexpr std::int64_t cast_bytes(DType from, DType to) {
  return bytes_of(from) + bytes_of(to);
}

}  // namespace shardwright::sim
