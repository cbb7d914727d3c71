// SPDX-License-Identifier: Apache-2.0
// What an action of a stage does of its chunk: which section of the chunk's schedule
// (sim/strategies/lower.h), which part of that where a pipeline schedule puts weight gradients off,
// and what it receives and sends.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/core/action.h"
#include "sim/core/pipeline_shape.h"
#include "sim/core/schedule.h"
#include "sim/strategies/lower.h"

namespace shardwright::sim {

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
