// SPDX-License-Identifier: Apache-2.0
// What each stage of a pipeline has allocated at its fullest: what its chunks hold for the whole
// step, and what their passes (chunk_memory.h) bring to life, in the order of the stage's actions.
// The same as allocated_peak() of the stage's schedule, without writing that.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/layout.h"
#include "sim/memory/memory.h"
#include "sim/program/program_cache.h"
#include "sim/program/stages.h"

namespace shardwright::sim {

/// Keeps what it writes in. Not thread-safe.
class StageMemory {
 public:
  /// Of one model and profile, which outlive it.
  StageMemory(const Model& model, const profiles::Profile& profile);
  ~StageMemory();

  enum class Stages : std::uint8_t { kAll, kFullest };
  /// By stage, of all or of some among which the fullest is; `parts` are those of
  /// partition_layers().
  std::vector<MemoryLevel> levels(const Plan& plan, ProgramCache& programs,
                                  const std::vector<ChunkContent>& parts,
                                  Stages which = Stages::kAll);
  /// Of the fullest stage, what outlives operations for certain.
  Bytes held_bytes(const Plan& plan, const std::vector<ChunkContent>& parts);

 private:
  Bytes fullest_held_bytes(const Plan& plan, const std::vector<ChunkContent>& parts);

  struct Held {
    Plan plan;
    Bytes bytes = 0;
  };
  class Chunks;
  const Model& model_;
  const profiles::Profile& profile_;
  std::unique_ptr<Chunks> chunks_;
  Schedule scratch_;
  std::optional<Held> held_;  // of the last plan, whatever it recomputes
};

/// What an allocator that is not replayed takes for that.
Bytes estimated_reserved_bytes(const MemoryLevel& allocated, const Stack& stack);

/// Communicators that a rank is part of.
int communicators(const Layout& layout);

}  // namespace shardwright::sim
