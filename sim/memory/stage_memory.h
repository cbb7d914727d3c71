// SPDX-License-Identifier: Apache-2.0
// What each stage of a plan has allocated at its fullest. Of a pipeline's: what its chunks hold for
// the whole step, and what their passes bring to life, in the order of the stage's
// actions, the same as allocated_peak() of the stage's schedule without writing that.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "profiles/profile.h"
#include "sim/memory/memory.h"
#include "sim/pipeline/step_program.h"
#include "sim/program/layer_program.h"
#include "sim/program/stages.h"
#include "sim/strategies/lower.h"

namespace shardwright::sim {

/// Where memory is static: the arenas of a stage, of which `level` is in use at its fullest.
MemoryLevel static_level(const Schedule& schedule, MemoryLevel level);

/// Keeps what it writes in. Not thread-safe.
class StageMemory {
 public:
  /// Of one model and profile, which outlive it, as the cache does.
  StageMemory(const Model& model, const profiles::Profile& profile, ProgramCache& programs);
  ~StageMemory();

  enum class Stages : std::uint8_t { kAll, kFullest };
  static constexpr Bytes kUnlimited = std::numeric_limits<Bytes>::max();
  /// By stage; `parts` are those of partition_layers(). Where memory is static, all that a rank
  /// allocates, up to the first stage that takes more than `most`.
  std::vector<MemoryLevel> levels(const Plan& plan, const std::vector<ChunkContent>& parts,
                                  Bytes most = kUnlimited);
  /// No more than that, of all stages or of some among which the fullest is: of a pipeline what is
  /// alive at once, wherever that lies, up to the first stage where that is more than `most`.
  std::vector<MemoryLevel> least_levels(const Plan& plan, const std::vector<ChunkContent>& parts,
                                        Stages which, Bytes most = kUnlimited);
  /// Of the fullest stage, what outlives operations for certain.
  Bytes held_bytes(const Plan& plan, const std::vector<ChunkContent>& parts);

 private:
  std::vector<MemoryLevel> levels_of_passes(const Plan& plan,
                                            const std::vector<ChunkContent>& parts, Stages which,
                                            Bytes most);
  Bytes fullest_held_bytes(const Plan& plan, const std::vector<ChunkContent>& parts);

  struct Held {
    Plan plan;
    Bytes bytes = 0;
  };
  class Chunks;
  class Steps;
  const Model& model_;
  const profiles::Profile& profile_;
  ProgramCache& programs_;
  std::unique_ptr<Chunks> chunks_;
  std::unique_ptr<Steps> steps_;
  StepProgram scratch_;
  std::optional<Held> held_;  // of the last plan, whatever it recomputes
};

// What the passes of a pipeline's chunk do to what a rank has allocated: each kind of pass followed
// once, by the lifetimes in the chunk's schedule, so that a stage adds them up in the order of its
// actions instead of walking them again for every micro-batch.

struct MemoryChange {
  MemoryLevel net;   // at its end, beyond what was there when it began
  MemoryLevel most;  // at its fullest, likewise; at least nothing

  /// What follows it.
  void add(const MemoryChange& next) {
    if (net.bytes + next.most.bytes > most.bytes) {
      most = net;
      most.add(next.most);
    }
    net.add(next.net);
  }
};

class ChunkMemory {
 public:
  /// Of a schedule that lower_chunk() wrote to be walked, which it keeps.
  explicit ChunkMemory(const Schedule& schedule) : schedule_(&schedule) {}

  const Schedule& schedule() const { return *schedule_; }
  const MemoryChange& of(ChunkSection section, PassPart part = PassPart::kAll);

 private:
  static constexpr std::size_t kSections =
      static_cast<std::size_t>(ChunkSection::kSendGradient) + 1;
  static constexpr std::size_t kParts = static_cast<std::size_t>(PassPart::kDelayed) + 1;

  const Schedule* schedule_;
  std::array<std::array<std::optional<MemoryChange>, kParts>, kSections> known_;
};

}  // namespace shardwright::sim
