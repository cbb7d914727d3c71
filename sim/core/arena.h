// SPDX-License-Identifier: Apache-2.0
// Where every activation of a static-memory step lives: the layout that the simulator sizes and the
// executor allocates, so that predicted and measured memory are the same number.
//
// A stage of a pipeline, which has several micro-batches in flight, has a place for every tensor of
// every pass. Of all others: backward visits units in the reverse order of forward,
// so what a unit keeps is pushed on a stack in forward and popped in backward. A pass finds its
// unit's kept tensors at a fixed base; whatever lives and dies inside the pass is packed first-fit
// above the top of the stack. Gradients of the residual stream pass between units through two slots
// that alternate. All offsets are multiples of kArenaAlignment.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/schedule.h"

namespace shardwright {

inline constexpr Bytes kArenaAlignment = 256;

struct ArenaPlan {
  Bytes size_bytes = 0;
  /// Offset of the first byte that a unit keeps; index by unit, one past the last unit included.
  std::vector<Bytes> unit_base;
  /// Bytes that the passes of a unit need above what it and all units before it keep.
  std::vector<Bytes> unit_scratch;
  /// Per MemoryAction (same index) that acquires: where its tensor lies. kept: from unit_base of
  /// the tensor's unit; scratch: from the top of the stack above the pass's unit; hand_over: from
  /// the slot of the unit's parity.
  enum class Place : std::uint8_t { kNone, kKept, kScratch, kHandOver };
  struct Slot {
    Place place = Place::kNone;
    Bytes offset = 0;
  };
  std::vector<Slot> slots;
  Bytes hand_over_bytes = 0;  // size of one of the two slots, which lie at 0 and hand_over_bytes

  /// Of a pipeline's stage: where the tensors lie that an operation of the step acquires, from
  /// first_of_op[number of the operation] on. Messages have slots of their own, which a stream may
  /// write to when whoever had one before is done with it.
  struct PassPlace {
    Bytes offset = 0;
    std::int32_t slot = -1;
  };
  std::vector<PassPlace> passes;
  std::vector<std::uint32_t> first_of_op;
  std::int32_t message_slots = 0;

  /// Offset in the arena of the tensor acquired by action `index` of a block that runs for `unit`,
  /// of a step without passes.
  Bytes offset(const Schedule& schedule, std::size_t index, std::int32_t unit) const;
};

/// Plans the activations of a schedule of the static memory manager. Buffers that strategies
/// declare as persistent are not part of it.
ArenaPlan plan_arena(const Schedule& schedule);

// The arena of a pipeline's stage: places follow from when tensors live in the step.
//
// Tensors of the compute stream are placed first-fit in the order in which the host issues what
// acquires them, until what compute has waited for lets go of them. Messages lie apart in slots of
// one size, and one that is sent keeps its slot through the next pass, under zbv until the next
// message of its channel.

constexpr Bytes aligned(Bytes bytes) {
  return round_up(bytes, kArenaAlignment);
}

/// Of a schedule with passes.
ArenaPlan plan_pass_arena(const Schedule& schedule);

}  // namespace shardwright
