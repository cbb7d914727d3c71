// SPDX-License-Identifier: Apache-2.0
// What the tuner prunes with: exact peak memory and a lower bound on time, about a million plans a
// second and core.
//
// Plans that differ only in how many layers they checkpoint form a family. Two of them are lowered
// and costed, no layer and every layer checkpointed; all others follow from these two
// (closed_memory.h, closed_time.h). There is no second model of any strategy here: whatever
// lower() writes and CostModel says is what is summed. It leaves out the caching allocator's
// reserve and what happens between collectives and kernels from moment to moment, which is why
// survivors are simulated.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/units.h"

namespace shardwright::sim {

/// By number of checkpointed layers, from 0 to as many as the plan's ckpt_stride reaches; only 0
/// when the plan recomputes nothing.
struct FamilyBounds {
  std::vector<Bytes> allocated_bytes;  // equal to MemoryPrediction::peak_allocated_bytes
  std::vector<Nanoseconds> step_ns;    // at most TimePrediction::iteration_s
  std::size_t size() const { return allocated_bytes.size(); }
};

/// Keeps memo tables and buffers between families. Not thread-safe.
class ClosedForm {
 public:
  ClosedForm(Model model, profiles::Profile profile);
  ~ClosedForm();
  ClosedForm(ClosedForm&&) noexcept;
  ClosedForm& operator=(ClosedForm&&) noexcept;

  /// Bounds of all plans that equal `plan` but for ckpt_layers. Throws Error when the plan
  /// contradicts the model or the cluster.
  FamilyBounds family(const Plan& plan);
  /// What the family says of this very plan, sooner than the family.
  Bytes allocated_bytes(const Plan& plan);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shardwright::sim
