// SPDX-License-Identifier: Apache-2.0
// Exact peak memory of every plan that differs only in which layers are checkpointed.
//
// What a pass allocates depends on its place (next to the embedding, in the middle, ...) and on
// whether its layer is checkpointed, never on other layers. So two schedules hold everything: one
// that checkpoints no layer and one that checkpoints all. The schedule of any plan is a splice of
// the two, and its peak follows from the change and the highest level of each pass. For the usual
// plans, which checkpoint a prefix, the table over all lengths costs about as much as one walk.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/schedule.h"
#include "sim/core/stack.h"
#include "sim/memory/memory.h"

namespace shardwright::sim {

class ClosedMemory {
 public:
  /// `none` and `all` are the same plan without and with every layer checkpointed.
  ClosedMemory(const Schedule& none, const Schedule& all, MemoryManager manager);

  /// Peak with layers 0..k-1 checkpointed; index k, 0..L.
  std::vector<MemoryPeak> peaks_of_prefixes() const;
  /// Peak with layers 0, stride, 2*stride, ... checkpointed, `count` of them.
  MemoryPeak peak(std::int64_t count, std::int64_t stride) const;

 private:
  /// A stretch of host order: what it adds to the level, and how far the level rises meanwhile.
  struct Stretch {
    MemoryPeak change, high;
  };
  struct Pass {
    std::int32_t unit;
    Stretch content[2];  // by "its layer is checkpointed"
  };
  struct Section {
    std::int32_t repeats;
    std::vector<Pass> passes;  // forward 0..L+1, backward L+1..0; others have one unit
  };
  static Stretch after(const Stretch& first, const Stretch& second);
  static Stretch repeated(const Stretch& once, std::int32_t repeats);
  static std::vector<Section> sections_of(const Schedule& none, const Schedule& all);
  std::vector<Stretch> prefixes_of(const Section& section) const;
  void add_arenas(const Schedule& none, const Schedule& all);

  std::int64_t layers_;
  Bytes persistent_ = 0;
  std::vector<Section> sections_;
  bool arenas_ = false;
  Section stack_;         // arenas: units in order, content kept and, above it, scratch
  Bytes hand_over_[2]{};  // arenas: both slots
};

}  // namespace shardwright::sim
