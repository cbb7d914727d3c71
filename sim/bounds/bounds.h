// SPDX-License-Identifier: Apache-2.0
// What the tuner prunes with: the least time and memory of a plan, before it is simulated.
//
// Plans of one stage that differ only in how many layers they checkpoint form a family. Two of them
// are lowered and costed, no layer and every layer checkpointed; the time of all others follows
// from these two (closed_form.h). A pipeline's time follows from the least that the passes of its
// chunks take. Memory is that of the fullest stage (sim/memory/stage_memory.h). There is no second
// model of any strategy here: whatever lower() writes and CostModel says is what is summed. It
// leaves out the caching allocator's reserve and what happens between collectives and kernels from
// moment to moment, which is why survivors are simulated.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/units.h"
#include "sim/cost/cost.h"
#include "sim/engine/engine.h"
#include "sim/program/layer_program.h"
#include "sim/program/stages.h"
#include "sim/strategies/lower.h"

namespace shardwright::sim {

// The least that passes of a pipeline take, unit by unit: the engine times each kind of unit alone,
// as the strategy writes it, and units follow one another. What overlaps units (collectives of
// another micro-batch) counts nothing. Kept for plans whose units are the same, so that a search
// bounds many pipelines at the cost of one.

/// Of the compute stream and the host; they add up over units.
struct LeastPass {
  Nanoseconds device_ns = 0, host_ns = 0;
  Nanoseconds delayed_ns = 0;  // of device_ns: weight gradients
  Nanoseconds least_ns() const { return std::max(device_ns, host_ns); }
  void add(const LeastPass& other, std::int64_t times = 1) {
    device_ns += times * other.device_ns;
    host_ns += times * other.host_ns;
    delayed_ns += times * other.delayed_ns;
  }
};

class UnitBounds {
 public:
  UnitBounds(const Model& model, const profiles::Profile& profile)
      : model_(model), profile_(profile), costs_(profile) {}

  struct Chunk {
    LeastPass forward, backward;
    Nanoseconds head_delayed_ns = 0;
  };
  struct Units {
    Chunk embedding, head;
    Chunk ending;                 // the head with all modules of multi-token prediction
    Chunk layer[kLayerKinds][2];  // by LayerKind::index and recomputation
  };
  Units units(const Plan& plan);
  /// Of a chunk of such units.
  Chunk of(const Units& units, const ChunkContent& content) const;

 private:
  struct Key {
    ListKey list;
    Strategy strategy;
    std::array<std::int64_t, 5> places{};
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  void time_plain(const Plan& plan, const Layout& layout, Units& units);
  void time_recomputed(const Plan& plan, const Layout& layout, Units& units);
  /// Adds what the chunk's units take to theirs.
  void add(const Plan& plan, const Layout& layout, const LayerPrograms& programs,
           const ChunkContent& content, Units& units);
  LeastPass least(std::uint32_t block);

  const Model& model_;
  const profiles::Profile& profile_;
  CostModel costs_;
  Engine engine_;
  Schedule schedule_;
  std::vector<OpCost> op_costs_;
  using Known = std::unordered_map<Key, Units, KeyHash>;
  Known plain_, recomputed_;  // of the second only recomputed layers
};

/// Keeps memo tables and buffers between plans. Not thread-safe.
class Bounds {
 public:
  /// Of one model and profile, which outlive it, as the cache does.
  Bounds(const Model& model, const profiles::Profile& profile, ProgramCache& programs);
  ~Bounds();

  /// Of all plans that equal `plan`, which has one stage, but for ckpt_layers: at most
  /// TimePrediction::iteration_s, by number of checkpointed layers, from 0 to as many as the plan's
  /// ckpt_stride reaches; only of 0 when the plan recomputes nothing. Throws Error when the plan
  /// contradicts the model or the cluster.
  std::vector<double> least_s_of_family(const Plan& plan);
  /// At most the time of a pipeline's step, which must be one that can be predicted.
  double least_pipeline_s(const Plan& plan);
  /// At most what the fullest stage takes of a GPU, runtime included. Equal to
  /// MemoryPrediction::total_bytes where that follows from the tensors that are alive
  /// (knows_reserved()).
  Bytes least_bytes(const Plan& plan);
  /// The same, or sooner what is too much already: what outlives operations, or the first stage
  /// that does not fit.
  Bytes least_bytes_or_too_many(const Plan& plan);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The least time of a pipeline's step, without its walk.
//
// What the recurrence (sim/pipeline) adds up is known before it runs: a stage computes all of its
// passes one after another, starts no sooner than the first micro-batch has come through the first
// chunks of the stages before it, and its last backward has yet to go back through them. So for
// every stage s
//
//   end >= sum_{q < s} F_q + m sum_c (F_sc + B_sc) + sum_{q < s} B_q
//
// with F_q and B_q the passes of the first chunk of stage q. With equal stages and no transfers
// that is the closed form of 1F1B and of interleaving, so there the bound is off by transfers and
// by waits of uneven stages only. Where weight gradients are passes of their own, they may be the
// last that a stage does: either they count or the way back through the stages before it. Schedules
// in the shape of a V have no such order; their bound is the busiest stage. What follows the passes
// (reductions, the update) counts nothing; passes count what their units take at least
// (UnitBounds).

/// `passes` are those of the same model and profile.
double pipeline_bound_s(const Model& model, const profiles::Profile& profile, const Plan& plan,
                        UnitBounds& passes);

}  // namespace shardwright::sim
