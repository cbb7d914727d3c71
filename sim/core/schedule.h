// SPDX-License-Identifier: Apache-2.0
// What one rank does in one optimizer step: the heart of the project. The simulator gives every
// operation a duration, the executor runs it; predicted and measured timelines therefore subtract
// operation by operation.
//
// A schedule is compact. Operations are listed in the order in which the host issues them, in
// Blocks that repeat over units (embedding = 0, layers = 1..L, head = L+1, shared norms = L+2). The
// step is a program of blocks, run-length encoded in Sections: what begins a step; forward and
// backward of the first micro-batch, of those between, of the last; the update. Streams run their
// operations in order; an operation also waits for the events it names. An event is the last
// recorded instance at the time the wait is issued, as with CUDA events; waiting for an event that
// was never recorded is no wait.
//
// Memory is part of the schedule: every block lists, in host order, which tensors come to life and
// die. What outlives the step is listed apart (persistent), with the facts about sharding from
// which its sizes and places follow (sim/core/placement.h). for_each_op walks the expanded step.
//
// A schedule is the view of one rank. Layers with tensor, context or expert parallelism communicate
// on a stream of their own (sim/program/list_pass.h). Of a pipeline's chunk it holds each kind of
// pass as a section (sim/strategies/lower.h); a stage's has a section for every pass of its chunks,
// in the order that sim/schedules say (sim/pipeline/step_program.h). Read next:
// sim/strategies/lower.h (who writes it), sim/engine/engine.h (who costs it), exec/executor.h (who
// runs it).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/action.h"
#include "sim/core/layout.h"
#include "sim/core/op.h"
#include "sim/core/persistent.h"
#include "sim/core/rank_group.h"
#include "sim/core/sharding_facts.h"
#include "sim/core/tensor.h"
#include "sim/core/units.h"

namespace shardwright {

enum class StreamRole : std::uint8_t { kCompute, kCommunication, kSide };

struct Stream {
  const char* name = "";
  StreamRole role = StreamRole::kCompute;
  int priority = 0;             // of its kernels; lower runs first, as in CUDA
  int collective_priority = 0;  // of the stream that a communicator runs its kernels on
};

/// MemoryAction::offset of a release that covers the tensor of every unit.
inline constexpr std::int16_t kAllUnits = 0x7fff;

/// A tensor coming to life or dying at an operation, in host order.
struct MemoryAction {
  std::uint32_t op = 0;  // relative to the block's first; acts before the operation when acquiring,
                         // after it when releasing
  bool acquire = true;
  std::uint8_t stream = 0;      // the pool it is taken from (caching allocator)
  std::uint8_t used_on = 0xff;  // another stream that must be done with it before reuse; 0xff: none
  MemoryCategory category = MemoryCategory::kActivations;
  Tensor tensor = Tensor::kNone;
  std::int16_t offset = 0;  // unit it belongs to, relative to the block's unit
  Bytes bytes = 0;          // of the tensor, also when releasing
};

/// Operations [first_op, first_op + op_count) run for units first_unit, first_unit + unit_step, ...
/// `repeats` times.
struct Block {
  std::uint32_t first_op = 0;
  std::uint32_t op_count = 0;
  std::uint32_t first_action = 0;  // into Schedule::memory, sorted by op
  std::uint32_t action_count = 0;
  std::int32_t first_unit = 0;
  std::int32_t unit_step = 1;
  std::int32_t repeats = 1;
  Phase phase = Phase::kForward;
};

/// An entry of a step's program: neighbouring blocks one after the other, `repeats` times, each
/// time for the next micro-batch.
struct Section {
  std::uint32_t first_block = 0;
  std::uint32_t block_count = 0;
  std::int32_t repeats = 1;
  std::optional<Action> pass = std::nullopt;  // of a pipeline's stage: which one it is
};

/// Identity of one execution of an operation within a step: its position in the expanded host
/// order, of a pipeline after those of the stages before.
using OpId = std::int64_t;

struct Schedule {
  std::vector<Stream> streams;  // 0 is the compute stream
  std::vector<Op> ops;
  std::vector<MemoryAction> memory;
  std::vector<Block> blocks;
  std::vector<Section> sections;  // the program
  std::vector<PersistentTensor> persistent;
  std::vector<const char*> event_names;  // [0] is unused
  std::int64_t layers = 0;
  OpId first_id = 0;
  std::array<RankGroup, kCommGroups> groups{};
  Layout layout;  // of plans whose layers communicate
  ShardingFacts sharding;
  UnitSizes unit_sizes;
  /// Of a pipeline's stage: the layers of its chunks, as units of the model.
  struct UnitRange {
    std::int32_t first = 0, count = 0;
  };
  std::vector<UnitRange> stage_layers;

  const RankGroup& group(CommGroup kind) const { return groups[static_cast<std::size_t>(kind)]; }
  RankGroup& group(CommGroup kind) { return groups[static_cast<std::size_t>(kind)]; }
  std::int64_t shard_ranks() const { return group(CommGroup::kShard).size; }
  std::int64_t replicate_ranks() const { return group(CommGroup::kReplicate).size; }
  std::int64_t world_ranks() const { return group(CommGroup::kWorld).size; }
  /// Between which the state of routed experts is divided, where the other units' is.
  std::int64_t expert_shard_ranks() const {
    return shard_ranks() == 1 ? 1 : group(CommGroup::kExpertData).size;
  }

  std::int32_t units() const { return static_cast<std::int32_t>(layers) + 3; }
  std::int32_t head_unit() const { return static_cast<std::int32_t>(layers) + 1; }
  std::int32_t norm_unit() const { return static_cast<std::int32_t>(layers) + 2; }
  /// The unit that an operation of `unit` gathers, reduces or casts.
  std::int32_t target(const Op& op, std::int32_t unit) const {
    return op.target == kNormUnit ? norm_unit() : unit + op.target;
  }
  /// Parameters of a unit, padded to a multiple of the shard group.
  std::int64_t unit_elements(std::int32_t unit) const {
    if (unit == 0) return unit_sizes.embedding;
    if (unit == norm_unit()) return unit_sizes.norms;
    if (unit == head_unit()) return unit_sizes.head;
    return has_layer(unit) ? unit_sizes.layer : 0;
  }
  bool has_layer(std::int32_t unit) const {
    return stage_layers.empty() ||
           std::any_of(stage_layers.begin(), stage_layers.end(), [unit](const UnitRange& range) {
             return unit >= range.first && unit < range.first + range.count;
           });
  }
  void clear();
};

struct OpInstance {
  OpId id = 0;
  std::uint32_t section = 0;
  std::uint32_t op = 0;  // index into Schedule::ops
  std::uint32_t block = 0;
  std::int32_t unit = 0;
  std::int32_t micro_step = 0;
};

/// Calls f(const OpInstance&, const Op&) for every operation of the step in host order.
template <class F>
void for_each_op(const Schedule& schedule, F&& f) {
  OpInstance at;
  at.id = schedule.first_id;
  for (const Section& section : schedule.sections) {
    if (section.pass) at.micro_step = section.pass->micro_batch;
    for (std::int32_t micro = 0; micro < section.repeats; ++micro) {
      for (std::uint32_t b = 0; b < section.block_count; ++b) {
        at.block = section.first_block + b;
        const Block& block = schedule.blocks[at.block];
        for (std::int32_t rep = 0; rep < block.repeats; ++rep) {
          at.unit = block.first_unit + rep * block.unit_step;
          for (std::uint32_t i = 0; i < block.op_count; ++i) {
            at.op = block.first_op + i;
            f(static_cast<const OpInstance&>(at), schedule.ops[at.op]);
            ++at.id;
          }
        }
      }
      ++at.micro_step;
    }
    ++at.section;
  }
}

/// Readable, stable name: "layer17.backward.down_projection.weight_gradient".
std::string describe(const Schedule& schedule, const OpInstance& instance);

/// "embedding", "layer17" (layers count from 0 in names), "head", "norms".
std::string unit_name(const Schedule& schedule, std::int32_t unit);

}  // namespace shardwright
