// SPDX-License-Identifier: Apache-2.0
#include "sim/core/arena.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <queue>
#include <utility>
#include <vector>

#include "sim/core/base/check.h"
#include "sim/core/memory_actions.h"

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
    for (const MemoryAction& action : schedule.actions_of(block)) {
      if (action.acquire && action.offset == 1) return aligned(action.bytes);
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
    for (const Block& block : schedule.blocks_of(section))
      has_forward = has_forward || block.phase == Phase::kForward;
    const bool sizes = has_forward && sized_section == 0;
    if (sizes) sized_section = 1;
    for (const Block& block : schedule.blocks_of(section)) {
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
        const auto unit = static_cast<std::size_t>(std::ptrdiff_t{block.first_unit} +
                                                   std::ptrdiff_t{rep} * block.unit_step);
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

namespace {

constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();

/// One tensor of one pass: from the operation of the step that acquires it to the one that is done
/// with it.
struct Life {
  Bytes bytes = 0;
  std::size_t begin = 0, end = kNowhere;
  bool is_message = false;
  std::size_t sent_in = kNowhere;      // run of a section, where it is sent
  std::size_t followed_at = kNowhere;  // by the next message of its channel
};

class Lives {
 public:
  explicit Lives(const Schedule& schedule)
      : schedule_(schedule), numbers_(schedule), live_(numbers_.size(), kNowhere) {
    MemoryActions actions(schedule);
    for_each_op(schedule, [&](const OpInstance& at, const Op& op) {
      first_of_op.push_back(static_cast<std::uint32_t>(all.size()));
      if (ends_.empty() || at.section != section_) ends_.push_back(0);
      section_ = at.section;
      ends_.back() = first_of_op.size() - 1;
      for (const MemoryAction& action : actions.of(at)) {
        if (action.bytes == 0) continue;
        action.acquire ? acquire(at, op, action) : release(at, op, action);
      }
    });
    // A message is on its way during the next pass, whose tensors must not wait for that.
    const bool waits_long = splits_second_chunk(schedule);
    for (Life& life : all) {
      if (life.sent_in == kNowhere) continue;
      life.end = ends_[std::min(life.sent_in + 1, ends_.size() - 1)];
      if (waits_long) life.end = std::max(life.end, std::min(life.followed_at, ends_.back()));
    }
  }

  std::vector<Life> all;  // in the order of their begin
  std::vector<std::uint32_t> first_of_op;

 private:
  /// Such a schedule (zbv) sends what the other stage may take many passes later, and only then
  /// sends what this one waits for: its messages keep their slots until the channel's next one,
  /// before which they have been taken (sim/pipeline/completes.h).
  static bool splits_second_chunk(const Schedule& schedule) {
    return std::any_of(schedule.sections.begin(), schedule.sections.end(), [](const Section& one) {
      return one.pass && one.pass->chunk > 0 && one.pass->kind == PassKind::kBackwardWeight;
    });
  }

  /// Of a pass; what stages exchange when all are done has room where these were.
  static bool is_message(const Op& op) {
    return op.work.kind == WorkKind::kTransfer && op.phase == Phase::kPrepare;
  }

  void acquire(const OpInstance& at, const Op& op, const MemoryAction& action) {
    live_[numbers_.of(at, action.tensor, action.offset)] = all.size();
    all.push_back({aligned(action.bytes), first_of_op.size() - 1});
    all.back().is_message = is_message(op);
  }

  void release(const OpInstance& at, const Op& op, const MemoryAction& action) {
    const std::size_t number = numbers_.of(at, action.tensor, action.offset);
    SHARDWRIGHT_CHECK(number != TensorNumbers::kNone && live_[number] != kNowhere,
                      "'{}' of unit {} dies before it lives", name_of(action.tensor),
                      at.unit + action.offset);
    const std::size_t dying = std::exchange(live_[number], kNowhere);
    Life& life = all[dying];
    life.end = first_of_op.size() - 1;
    life.is_message = life.is_message || is_message(op);
    if (is_message(op)) {
      life.sent_in = ends_.size() - 1;
      const auto [last, first] = last_sent_.try_emplace({op.peer, op.channel}, dying);
      if (!first) all[std::exchange(last->second, dying)].followed_at = life.end;
    }
  }

  const Schedule& schedule_;
  TensorNumbers numbers_;
  std::vector<std::size_t> live_;                                           // by number
  std::map<std::pair<std::int16_t, std::int16_t>, std::size_t> last_sent_;  // by peer and channel
  std::uint32_t section_ = 0;
  std::vector<std::size_t> ends_;  // of sections as they run, the last operation so far
};

/// First-fit among what is alive.
class Space {
 public:
  Bytes place(const Life& life) {
    for (; !used_.empty() && used_.top().last_use < life.begin; used_.pop()) give_back(used_.top());
    auto gap = gaps_.begin();
    while (gap->end - gap->begin < life.bytes) ++gap;
    const Bytes at = gap->begin;
    gap->begin += life.bytes;
    if (gap->begin == gap->end) gaps_.erase(gap);
    used_.push({life.end, at, at + life.bytes});
    high_ = std::max(high_, at + life.bytes);
    return at;
  }
  Bytes high() const { return high_; }

 private:
  struct Range {
    std::size_t last_use;
    Bytes begin, end;
    bool operator>(const Range& other) const { return last_use > other.last_use; }
  };

  void give_back(const Range& range) {
    auto behind = std::lower_bound(
        gaps_.begin(), gaps_.end(), range,
        [](const Range& gap, const Range& other) { return gap.begin < other.begin; });
    const bool joins_behind = behind->begin == range.end;
    if (joins_behind) behind->begin = range.begin;
    if (behind != gaps_.begin() && std::prev(behind)->end == range.begin) {
      std::prev(behind)->end = joins_behind ? behind->end : range.end;
      if (joins_behind) gaps_.erase(behind);
    } else if (!joins_behind) {
      gaps_.insert(behind, range);
    }
  }

  std::vector<Range> gaps_ = {{0, 0, std::numeric_limits<Bytes>::max()}};  // by address
  std::priority_queue<Range, std::vector<Range>, std::greater<>> used_;    // the next to end first
  Bytes high_ = 0;
};

}  // namespace

ArenaPlan plan_pass_arena(const Schedule& schedule) {
  Lives lives(schedule);
  ArenaPlan plan;
  plan.first_of_op = std::move(lives.first_of_op);
  Bytes slot_bytes = 0;
  for (const Life& life : lives.all) {
    if (life.is_message) slot_bytes = std::max(slot_bytes, life.bytes);
  }
  std::vector<std::size_t> busy_until;  // by slot
  Space space;
  for (const Life& life : lives.all) {
    ArenaPlan::PassPlace& place = plan.passes.emplace_back();
    if (!life.is_message) {
      place.offset = space.place(life);
      continue;
    }
    // Of free slots the one that has been free for longest, for what was in it may still be sent.
    auto free = std::min_element(busy_until.begin(), busy_until.end());
    if (free != busy_until.end() && *free >= life.begin) free = busy_until.end();
    place.slot = static_cast<std::int32_t>(free - busy_until.begin());
    if (free == busy_until.end()) busy_until.push_back(0);
    busy_until[static_cast<std::size_t>(place.slot)] = life.end;
  }
  plan.message_slots = static_cast<std::int32_t>(busy_until.size());
  for (ArenaPlan::PassPlace& place : plan.passes) {
    place.offset =
        place.slot < 0 ? plan.message_slots * slot_bytes + place.offset : place.slot * slot_bytes;
  }
  plan.size_bytes = plan.message_slots * slot_bytes + space.high();
  return plan;
}

}  // namespace shardwright
