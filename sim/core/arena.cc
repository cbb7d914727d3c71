// SPDX-License-Identifier: Apache-2.0
#include "sim/core/arena.h"

#include <algorithm>

#include "sim/core/base/check.h"
#include "sim/core/pass_arena.h"

namespace shardwright {

namespace {

/// First-fit packing of the tensors that live inside one pass.
class Scratch {
 public:
  Bytes place(Tensor tensor, Bytes bytes) {
    Bytes at = 0;
    auto next = used_.begin();
    for (; next != used_.end() && next->begin - at < bytes; ++next) at = next->end;
    used_.insert(next, {at, at + bytes, tensor});
    high_ = std::max(high_, at + bytes);
    return at;
  }
  void remove(Tensor tensor) {
    const auto at = std::find_if(used_.begin(), used_.end(),
                                 [tensor](const Range& r) { return r.tensor == tensor; });
    if (at != used_.end()) used_.erase(at);
  }
  Bytes high() const { return high_; }

 private:
  struct Range {
    Bytes begin, end;
    Tensor tensor;
  };
  std::vector<Range> used_;  // by address
  Bytes high_ = 0;
};

/// Whether the tensor acquired by action `i` dies in the same repetition of the same block.
bool dies_in_block(const Schedule& schedule, const Block& block, std::size_t i) {
  const MemoryAction& born = schedule.memory[i];
  for (std::size_t j = i + 1; j < block.first_action + block.action_count; ++j) {
    const MemoryAction& action = schedule.memory[j];
    if (!action.acquire && action.tensor == born.tensor && action.offset == born.offset)
      return true;
  }
  return false;
}

/// Size of the tensor that a forward pass writes for the next unit: the residual stream.
Bytes residual_bytes(const Schedule& schedule) {
  for (const Block& block : schedule.blocks) {
    if (block.phase != Phase::kForward) continue;
    for (std::size_t i = block.first_action; i < block.first_action + block.action_count; ++i) {
      if (schedule.memory[i].acquire && schedule.memory[i].offset == 1)
        return aligned(schedule.memory[i].bytes);
    }
  }
  return 0;
}

}  // namespace

Bytes ArenaPlan::offset(const Schedule& schedule, std::size_t index, std::int32_t unit) const {
  const Slot& slot = slots[index];
  const std::int32_t owner = unit + schedule.memory[index].offset;
  switch (slot.place) {
    case Place::kKept:
      return unit_base[static_cast<std::size_t>(owner)] + slot.offset;
    case Place::kScratch:
      return unit_base[static_cast<std::size_t>(unit) + 1] + slot.offset;
    case Place::kHandOver:
      return (owner % 2 == 0 ? 0 : hand_over_bytes) + slot.offset;
    case Place::kNone:
      break;
  }
  return 0;
}

ArenaPlan plan_arena(const Schedule& schedule) {
  const bool has_passes = std::any_of(schedule.sections.begin(), schedule.sections.end(),
                                      [](const Section& section) { return section.pass; });
  if (has_passes) return plan_pass_arena(schedule);
  ArenaPlan plan;
  plan.slots.resize(schedule.memory.size());
  const auto units = static_cast<std::size_t>(schedule.units());
  std::vector<Bytes> kept(units + 1, 0);
  plan.unit_scratch.assign(units + 1, 0);
  std::vector<Bytes>& scratch = plan.unit_scratch;
  const Bytes residual = residual_bytes(schedule);
  // Every micro-batch has the same passes; the first one says what a unit keeps.
  std::uint32_t sized_section = 0;
  for (std::uint32_t s = 0; s < schedule.sections.size(); ++s) {
    const Section& section = schedule.sections[s];
    bool has_forward = false;
    for (std::uint32_t b = section.first_block; b < section.first_block + section.block_count;
         ++b) {
      has_forward = has_forward || schedule.blocks[b].phase == Phase::kForward;
    }
    const bool sizes = has_forward && sized_section == 0;
    if (sizes) sized_section = 1;
    for (std::uint32_t b = section.first_block; b < section.first_block + section.block_count;
         ++b) {
      const Block& block = schedule.blocks[b];
      Scratch pass;
      // A unit's input, which the pass before wrote, comes first among what it keeps; so does the
      // next unit's, above which a forward pass has its scratch.
      const bool forward = block.phase == Phase::kForward;
      const Bytes input = forward && block.first_unit > 0 ? residual : 0;
      const Bytes output = forward && block.first_unit < schedule.head_unit() ? residual : 0;
      Bytes own = 0;
      for (std::size_t i = block.first_action; i < block.first_action + block.action_count; ++i) {
        const MemoryAction& action = schedule.memory[i];
        if (!action.acquire) {
          pass.remove(action.tensor);
          continue;
        }
        ArenaPlan::Slot& slot = plan.slots[i];
        if (dies_in_block(schedule, block, i)) {
          slot.place = ArenaPlan::Place::kScratch;
          slot.offset = output + pass.place(action.tensor, aligned(action.bytes));
        } else if (forward) {
          SHARDWRIGHT_CHECK(action.offset == 0 || action.offset == 1,
                            "a forward pass keeps a tensor of unit offset {}", action.offset);
          slot.place = ArenaPlan::Place::kKept;
          if (action.offset == 0) {
            slot.offset = input + own;
            own += aligned(action.bytes);
          }
        } else {
          slot.place = ArenaPlan::Place::kHandOver;
          slot.offset = 0;
          plan.hand_over_bytes = std::max(plan.hand_over_bytes, aligned(action.bytes));
        }
      }
      for (std::int32_t rep = 0; rep < block.repeats; ++rep) {
        const auto unit =
            static_cast<std::size_t>(std::ptrdiff_t{block.first_unit} + rep * block.unit_step);
        scratch[unit] = std::max(scratch[unit], output + pass.high());
        if (sizes && forward) kept[unit] = input + own;
      }
    }
  }
  plan.unit_base.assign(units + 1, 0);
  plan.unit_base[0] = 2 * plan.hand_over_bytes;
  plan.size_bytes = plan.unit_base[0];
  for (std::size_t unit = 0; unit < units; ++unit) {
    plan.unit_base[unit + 1] = plan.unit_base[unit] + kept[unit];
    plan.size_bytes = std::max(plan.size_bytes, plan.unit_base[unit + 1] + scratch[unit]);
  }
  return plan;
}

}  // namespace shardwright
