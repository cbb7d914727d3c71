// SPDX-License-Identifier: Apache-2.0
// Lowers (model, plan, stack) into the Schedule of one optimizer step: the units' own operations
// from layer_program.h, wrapped by the strategy, in host order: prologue, micro-batches (forward
// over units 0..L+1, backward over L+1..0), then gradient norm, clip and optimizer.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/core/model.h"
#include "sim/core/pipeline.h"
#include "sim/core/plan.h"
#include "sim/core/schedule.h"
#include "sim/core/stack.h"
#include "sim/program/layer_program.h"
#include "sim/program/stages.h"

namespace shardwright::sim {

/// Whether the stack runs the strategy; otherwise lower throws Error.
bool has_schedule(Strategy strategy, const Stack& stack);

/// Fills `out` (reusing its memory). `programs` must come from the same model, stack and plan shape
/// (micro_batch, seq_len, recompute, attention, param_dtype).
void lower(const Model& model, const Plan& plan, const Stack& stack, const Cluster& cluster,
           const LayerPrograms& programs, Schedule& out);

/// What a step of a pipeline's chunk is made of, as lower_chunk() writes it: one section each,
/// repeated as often as the step has it, in no order of time.
enum class ChunkSection : std::uint8_t {
  kPrepare,
  kReceive,  // of a pass: the input from another stage
  kFirstForward,
  kForward,
  kFirstBackward,  // where gradients begin; empty unless the chunk is walked
  kBackward,
  kLastBackward,
  kTiedSum,  // of gradients of a table that is embedding and head; empty for any other
  kUpdate,
  // Of a chunk that is walked:
  kReceiveGradient,
  kSendOutput,
  kSendGradient
};

/// Whether passes are timed, each kind once, or walked by ranks that hand tensors on; or only their
/// memory is followed: an operation stands for all of a unit's in a pass then.
enum class ChunkUse : std::uint8_t { kTimed, kWalked, kMemory };

/// Fills `out` with the step of one chunk: of the whole model as lower() does, of a pipeline in
/// sections. Its units are numbered from 0, the place of the embedding, which only the first chunk
/// has; its optimizer updates the chunk's parameters.
void lower_chunk(const Model& model, const Plan& plan, const Stack& stack, const Cluster& cluster,
                 const LayerPrograms& programs, const ChunkContent& content, Schedule& out,
                 ChunkUse use = ChunkUse::kTimed);

/// Of a chunk, parameters, gradients and optimizer state that outlive operations: at most what it
/// holds at any moment, at a small part of lowering it.
Bytes held_bytes(const Model& model, const Plan& plan, const Stack& stack, const Cluster& cluster,
                 const ChunkContent& content, Schedule& scratch);

// What an action of a stage does of its chunk: which section of the chunk's schedule,
// which part of that where a pipeline schedule puts weight gradients off,
// and what it receives and sends.

/// All of a backward pass, or what remains and what follows where weight gradients are put off.
enum class PassPart : std::uint8_t { kAll, kPrompt, kDelayed };
PassPart part_of(PassKind kind);
bool is_in(const Op& op, PassPart part);

/// Of a chunk that `passes` micro-batches go through, in ascending order each way.
ChunkSection section_of(const Action& action, std::int32_t passes);

/// The chunks on other stages that a pass gets its input from and gives its output to, and the
/// sections in which it does.
struct PassEnds {
  std::optional<ChunkPlace> from, to;
  ChunkSection receive = ChunkSection::kReceive, send = ChunkSection::kSendOutput;
};
PassEnds ends_of(const PipelineShape& shape, ChunkPlace at, PassKind kind);

/// The operations of a block that are in a part of its pass, with their memory.
class BlockPart {
 public:
  /// Keeps both.
  BlockPart(const Schedule& schedule, const Block& block, PassPart part)
      : schedule_(schedule), block_(block), part_(part) {}

  bool has(std::uint32_t op) const;
  /// Appends what happens of the action in this part. Delayed operations keep what they read of a
  /// tensor, of an output's gradient in fp8 the cast one: what is let go of before them is less
  /// than the tensor, and they let go of the rest.
  void add_to(std::vector<MemoryAction>& actions, const MemoryAction& action) const;

 private:
  const Op& op(std::uint32_t index) const { return schedule_.ops[block_.first_op + index]; }
  /// When what no delayed operation reads of the tensor goes, and what they read.
  struct Release {
    std::uint32_t prompt = 0, delayed = 0;
    Bytes kept = 0;
  };
  Release release_of(const MemoryAction& action) const;

  const Schedule& schedule_;
  const Block& block_;
  PassPart part_;
};

}  // namespace shardwright::sim
