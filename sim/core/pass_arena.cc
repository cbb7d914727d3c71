// SPDX-License-Identifier: Apache-2.0
#include "sim/core/pass_arena.h"

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
