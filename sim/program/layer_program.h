// SPDX-License-Identifier: Apache-2.0
// The passes of the units (embedding, layer, head) as a stack executes them, with the tensors they
// read, write and keep for backward.
//
// The idea: a unit is a small dataflow program. Forward operations name their input and output
// tensors; backward operations name the tensors they need. Which tensors survive from forward to
// backward is the recompute policy: what is needed and was not kept is produced again, by exactly
// those forward operations that lead from kept tensors to it. Lifetimes follow from first and last
// use, so memory is liveness over the same operations that are costed. Sharding knows nothing of
// this; strategies put their gathers and reductions around a unit (sim/strategies/).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/schedule.h"
#include "sim/core/stack.h"
#include "sim/program/unit_program.h"

namespace shardwright::sim {

/// Whether passes have their operations, or only what these bring to life and let go of, as
/// ChunkUse::kMemory wants it (sim/strategies/lower.h).
enum class ProgramUse : std::uint8_t { kOperations, kMemory };

/// All passes of the three kinds of unit for one (model, plan shape, stack). Independent of the
/// strategy and of the number of GPUs, so that a search builds it once for many plans.
class LayerPrograms {
 public:
  /// `gpu` says how GEMMs in fp8 want their operands; without one, with a transposed copy.
  LayerPrograms(const Model& model, const Plan& plan, const Stack& stack, const Gpu& gpu = {},
                ProgramUse use = ProgramUse::kOperations);
  /// `nothing_recomputed` are those of nothing_recomputed(), which recomputed layers are added to.
  LayerPrograms(const LayerPrograms& nothing_recomputed, const Model& model, const Plan& plan,
                const Stack& stack, const Gpu& gpu, ProgramUse use = ProgramUse::kOperations);
  /// Of chunks that have nothing else.
  static LayerPrograms recomputed_layers(const Model& model, const Plan& plan, const Stack& stack,
                                         const Gpu& gpu);

  const UnitPass& embedding_forward() const { return plain_->embedding.forward; }
  const UnitPass& embedding_backward() const { return plain_->embedding.backward; }
  const UnitPass& layer_forward(bool checkpointed, LayerKind kind = {}) const {
    return layer(checkpointed, kind).forward;
  }
  const UnitPass& layer_backward(bool checkpointed, LayerKind kind = {}) const {
    return layer(checkpointed, kind).backward;
  }
  /// The same where no other micro-batch hides what travels; itself where none ever does.
  const LayerPrograms& alone() const { return alone_ ? *alone_ : *this; }
  /// With so many modules of multi-token prediction before it.
  const UnitPass& head_forward(std::int64_t predictions = 0) const {
    return with(plain_->head, predictions).forward;
  }
  const UnitPass& head_backward(std::int64_t predictions = 0) const {
    return with(plain_->head, predictions).backward;
  }
  /// Of these modules without the head.
  const UnitPass& predictions_forward(std::int64_t predictions) const {
    return with(plain_->predictions, predictions).forward;
  }
  const UnitPass& predictions_backward(std::int64_t predictions) const {
    return with(plain_->predictions, predictions).backward;
  }
  /// Of a tensor of the dense units.
  Bytes bytes_of(Tensor tensor) const { return plain_->tensors[tensor].bytes; }
  /// Releases, for all units at once, of what the trainer holds until the micro-batch's backward
  /// has ended: by so many checkpointed layers and, where it is among the units, the head. Computed
  /// at every call.
  std::vector<MemoryAction> held(std::int64_t checkpointed_layers, bool with_head) const;

 private:
  void keep_after(UnitPass& pass, Tensor tensor) const;

  struct Passes {
    UnitPass forward, backward;
  };
  /// What recomputation does not change.
  struct Plain {
    ProgramTensors tensors;
    Passes embedding;
    Passes layer[kLayerKinds];              // by LayerKind::index
    std::vector<Passes> head, predictions;  // by modules of multi-token prediction
  };
  class Writer;
  const Passes& layer(bool checkpointed, LayerKind kind) const {
    return checkpointed && recomputes_ ? recomputed_[kind.index()] : plain_->layer[kind.index()];
  }
  LayerPrograms() = default;
  void add_recomputed(const LayerPrograms* alone, const Model& model, const Plan& plan,
                      const Stack& stack, const Gpu& gpu, ProgramUse use);
  static const Passes& with(const std::vector<Passes>& passes, std::int64_t predictions) {
    return passes[std::min(passes.size() - 1, static_cast<std::size_t>(predictions))];
  }
  std::shared_ptr<const Plain> plain_;
  bool recomputes_ = false;
  Passes recomputed_[kLayerKinds];
  std::unique_ptr<LayerPrograms> alone_;
};

/// The same plan, which recomputes nothing.
Plan without_recomputation(Plan plan);
/// The plan that recomputes nothing, all of whose units the plan has too; nothing where the
/// framework runs other units beside those that it recomputes.
std::optional<Plan> nothing_recomputed(const Plan& plan, const Stack& stack);

// Layer programs by what they depend on, so that plans which differ in anything else share them.
//
// A field of Plan that LayerPrograms begins to read belongs into the key of ProgramCache:
// bounds and predictions both ask here, so they cannot disagree about it.

// A plan without what no list of a unit's operations depends on.

struct ListKey {
  explicit ListKey(Plan of) : plan(std::move(of)) {
    plan.strategy = Strategy::kSingle;
    plan.gpus = 1;
    plan.shard_group = 0;
    plan.buffers = Plan{}.buffers;
    plan.prefetch = Plan{}.prefetch;
    plan.allocator = AllocatorKind::kStack;
    plan.moment_dtype = Plan{}.moment_dtype;
    plan.ckpt_stride = 1;
    plan.grad_accum = std::min<std::int64_t>(plan.grad_accum, 2);
    plan.ckpt_layers = plan.recompute == Recompute::kNone || plan.ckpt_layers == 0 ? 0 : 1;
    plan.parallel.pp = plan.parallel.virtual_stages = 1;
    plan.parallel.pp_schedule.reset();
    plan.parallel.pp_layout.clear();
  }
  bool operator==(const ListKey&) const = default;

  Plan plan;
};

struct ListKeyHash {
  std::size_t operator()(const ListKey& key) const {
    const Parallelism& p = key.plan.parallel;
    std::size_t seed = 0;
    for (const std::int64_t value :
         {p.tp, p.cp, p.ep, p.etp, key.plan.micro_batch, key.plan.ckpt_layers, key.plan.grad_accum,
          static_cast<std::int64_t>(key.plan.recompute), std::int64_t{key.plan.pieces}}) {
      seed ^=
          std::hash<std::int64_t>{}(value) + 0x9e3779b97f4a7c15ULL + (seed << 6U) + (seed >> 2U);
    }
    return seed;
  }
};

/// Not thread-safe.
class ProgramCache {
 public:
  /// Of one model on one stack and GPU, which outlive the cache.
  ProgramCache(const Model& model, const Stack& stack, const Gpu& gpu);
  ProgramCache(Model&&, const Stack&, const Gpu&) = delete;
  ~ProgramCache();

  /// Stays valid as long as the cache.
  const LayerPrograms& at(const Plan& plan);
  /// Of ProgramUse::kMemory.
  const LayerPrograms& memory_at(const Plan& plan);

 private:
  struct Table;
  const LayerPrograms& find(Table& table, const ListKey& key, const Plan& plan, ProgramUse use);
  const Model& model_;
  const Stack& stack_;
  const Gpu& gpu_;
  std::unique_ptr<Table> operations_, memory_;
};

}  // namespace shardwright::sim
