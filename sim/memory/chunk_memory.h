// SPDX-License-Identifier: Apache-2.0
// What the passes of a pipeline's chunk do to what a rank has allocated: each kind of pass followed
// once, by the lifetimes in the chunk's schedule, so that a stage adds them up in the order of its
// actions instead of walking them again for every micro-batch.
#pragma once

#include <array>
#include <optional>

#include "sim/memory/memory.h"
#include "sim/strategies/pass_parts.h"

namespace shardwright::sim {

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
