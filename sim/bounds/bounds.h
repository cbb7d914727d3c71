// SPDX-License-Identifier: Apache-2.0
// What the tuner prunes with: the least time and memory of a plan, before it is simulated.
//
// Plans of one stage that differ only in how many layers they checkpoint form a family. Two of them
// are lowered and costed, no layer and every layer checkpointed; all others follow from these two
// (closed_memory.h, closed_time.h), about a million plans a second and core. A pipeline's time
// follows from the least that the passes of its chunks take (pipeline_bound.h), its memory from the
// fullest of its stages (sim/memory/stage_memory.h). There is no second model of any strategy here:
// whatever lower() writes and CostModel says is what is summed. It leaves out the caching
// allocator's reserve and what happens between collectives and kernels from moment to moment, which
// is why survivors are simulated.
#pragma once

#include <memory>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/units.h"
#include "sim/program/program_cache.h"

namespace shardwright::sim {

/// By number of checkpointed layers, from 0 to as many as the plan's ckpt_stride reaches; only 0
/// when the plan recomputes nothing.
struct FamilyBounds {
  std::vector<Bytes> least_bytes;  // as Bounds::least_bytes()
  std::vector<double> least_s;     // at most TimePrediction::iteration_s
  std::size_t size() const { return least_bytes.size(); }
};

/// Keeps memo tables and buffers between plans. Not thread-safe.
class Bounds {
 public:
  /// Of one model and profile, which outlive it, as the cache does.
  Bounds(const Model& model, const profiles::Profile& profile, ProgramCache& programs);
  ~Bounds();

  /// Bounds of all plans that equal `plan`, which has one stage, but for ckpt_layers. Throws Error
  /// when the plan contradicts the model or the cluster.
  FamilyBounds family(const Plan& plan);
  /// At most the time of a pipeline's step, which must be one that can be predicted.
  double least_pipeline_s(const Plan& plan);
  /// At most what the fullest stage takes of a GPU, runtime included. Equal to
  /// MemoryPrediction::total_bytes where that follows from the tensors that are alive
  /// (knows_reserved()).
  Bytes least_bytes(const Plan& plan);
  /// The same, or sooner only what outlives operations where that is too much.
  Bytes least_bytes_or_too_many(const Plan& plan);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shardwright::sim
