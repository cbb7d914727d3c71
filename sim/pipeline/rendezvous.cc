// SPDX-License-Identifier: Apache-2.0
#include "sim/pipeline/rendezvous.h"

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/core/arena.h"
#include "sim/core/base/invalid_plan.h"
#include "sim/core/memory_actions.h"
#include "sim/core/message_queue.h"
#include "sim/pipeline/completes.h"

namespace shardwright::sim {
namespace {

/// A message of a stage: the `number`-th of its queue.
struct QueuedMessage {
  MessageQueue queue;
  bool sends = false;
  std::size_t number = 0;
  std::int16_t channel = 0;
  std::optional<Action> pass;  // nothing: what stages exchange behind their passes
};

/// What a stage comes to, in the order of its host: a message that begins, or one that must have
/// ended.
struct QueueStep {
  std::size_t message = 0;
  bool begins = false;
};

struct QueueProgram {
  std::vector<QueuedMessage> messages;
  std::vector<QueueStep> steps;
  std::size_t next = 0;
  bool is_done() const { return next == steps.size(); }
};

/// Walks the schedule of a stage.
class QueueProgramWriter {
 public:
  QueueProgramWriter(const Schedule& schedule, std::int32_t stage)
      : schedule_(schedule), stage_(stage), arena_(plan_arena(schedule)), actions_(schedule) {
    for_each_op(schedule, [&](const OpInstance& at, const Op& op) { visit(at, op); });
  }
  QueueProgram program;

 private:
  using Key = std::tuple<Tensor, std::int32_t, std::int32_t>;  // unit, micro-batch
  using Event = std::pair<std::int32_t, std::int32_t>;         // name, unit
  using End = std::pair<MessageQueue, bool>;                   // of a queue: whether it sends

  void visit(const OpInstance& at, const Op& op) {
    const auto actions = actions_.of(at);
    for (const EventRef& ref : op.waits) await(recorded_, event(at, ref));
    acquire(at, actions);
    const std::int32_t message = op.peer >= 0 ? begin(at, op) : kNone;
    for (const MemoryAction& action : actions) {
      if (action.acquire || action.bytes == 0) continue;
      const auto slot = places_.find(key_of(at, action));
      if (slot != places_.end() && slot->second >= 0) last_users_[slot->second] = message;
    }
    if (op.record) recorded_[event(at, op.record)] = message;
    ++op_;
  }

  Event event(const OpInstance& at, const EventRef& ref) const {
    return {ref.name, at.unit + ref.offset};
  }
  Key key_of(const OpInstance& at, const MemoryAction& action) const {
    const auto& pass = schedule_.sections[at.section].pass;
    const bool is_of_pass = pass && !belongs_to_step(action.tensor);
    return {action.tensor, at.unit + action.offset, is_of_pass ? pass->micro_batch : -1};
  }

  template <class Which>
  void await(const std::map<Which, std::int32_t>& last, const Which& which) {
    const auto found = last.find(which);
    if (found == last.end() || found->second == kNone) return;
    program.steps.push_back({static_cast<std::size_t>(found->second), false});
  }

  void acquire(const OpInstance& at, std::span<const MemoryAction> actions) {
    std::size_t place = arena_.first_of_op[op_];
    for (const MemoryAction& action : actions) {
      if (!action.acquire || action.bytes == 0) continue;
      const std::int32_t slot = arena_.passes[place++].slot;
      places_[key_of(at, action)] = slot;
      if (slot >= 0) await(last_users_, slot);
    }
  }

  std::int32_t begin(const OpInstance& at, const Op& op) {
    const End end{queue_of(op, stage_), op.kind == OpKind::kSend};
    const auto message = static_cast<std::int32_t>(program.messages.size());
    program.messages.push_back(
        {end.first, end.second, counts_[end]++, op.channel, schedule_.sections[at.section].pass});
    // A queue is a stream: what was in it before has ended.
    await(before_, end);
    before_[end] = message;
    program.steps.push_back({static_cast<std::size_t>(message), true});
    return message;
  }

  static constexpr std::int32_t kNone = -1;
  const Schedule& schedule_;
  std::int32_t stage_;
  ArenaPlan arena_;
  MemoryActions actions_;
  std::size_t op_ = 0;                  // of the step
  std::map<Key, std::int32_t> places_;  // the slots of tensors
  std::map<End, std::size_t> counts_;
  // The message that did it, or kNone where another operation did.
  std::map<End, std::int32_t> before_;
  std::map<Event, std::int32_t> recorded_;
  std::map<std::int32_t, std::int32_t> last_users_;  // by slot
};

class RendezvousWalk {
 public:
  explicit RendezvousWalk(const std::vector<Schedule>& stages) {
    std::int32_t stage = 0;
    for (const Schedule& schedule : stages)
      programs_.push_back(QueueProgramWriter(schedule, stage++).program);
  }

  void run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (QueueProgram& program : programs_) {
        for (; !program.is_done() && pass(program); ++program.next) moved = true;
      }
    }
    for (std::size_t stage = 0; stage < programs_.size(); ++stage) {
      if (!programs_[stage].is_done()) refuse(cycle_behind(stage));
    }
  }

 private:
  [[noreturn]] static void refuse(const std::string& why) {
    throw InvalidPlan(
        "over NCCL, which holds a message until it is taken, a step of this pipeline would "
        "not end: " +
        why);
  }

  /// What a queue has begun to send, or to take, in order.
  using Begun = std::vector<const QueuedMessage*>;
  Begun& begun(const QueuedMessage& message, bool sends) { return begun_[{message.queue, sends}]; }

  bool pass(const QueueProgram& program) {
    const QueueStep& step = program.steps[program.next];
    const QueuedMessage& message = program.messages[step.message];
    if (!step.begins) return begun(message, !message.sends).size() > message.number;
    begun(message, message.sends).push_back(&message);
    const Begun& others = begun(message, !message.sends);
    if (others.size() > message.number) check_alike(message, *others[message.number]);
    return true;
  }

  static void check_alike(const QueuedMessage& one, const QueuedMessage& other) {
    const bool alike = one.channel == other.channel &&
                       one.pass.has_value() == other.pass.has_value() &&
                       (!one.pass || one.pass->micro_batch == other.pass->micro_batch);
    if (alike) return;
    const QueuedMessage& sent = one.sends ? one : other;
    const QueuedMessage& taken = one.sends ? other : one;
    refuse(fmt::format("stage {} sends {} on channel {} where stage {} takes {} on channel {}",
                       sent.queue.from, message_name(sent.pass), sent.channel, taken.queue.to,
                       message_name(taken.pass), taken.channel));
  }

  /// What a stage that is not done waits for. Whoever is at its other end is not done either, or
  /// check_completes() would have refused.
  const QueuedMessage& awaited(std::size_t stage) const {
    const QueueProgram& program = programs_[stage];
    return program.messages[program.steps[program.next].message];
  }
  static std::size_t other_end(const QueuedMessage& message) {
    return static_cast<std::size_t>(message.sends ? message.queue.to : message.queue.from);
  }

  std::string cycle_behind(std::size_t stage) const {
    std::vector<bool> seen(programs_.size());
    while (!seen[stage]) {
      seen[stage] = true;
      stage = other_end(awaited(stage));
    }
    std::string text = fmt::format("stage {}", stage);
    std::size_t at = stage;
    do {
      const QueuedMessage& message = awaited(at);
      const std::size_t other = other_end(message);
      text += at == stage ? " waits" : ", which waits";
      text += message.sends
                  ? fmt::format(" until stage {} takes {}", other, message_name(message.pass))
                  : fmt::format(" for {} from stage {}", message_name(message.pass), other);
      at = other;
    } while (at != stage);
    return text;
  }

  std::vector<QueueProgram> programs_;  // by stage
  std::map<std::pair<MessageQueue, bool>, Begun> begun_;
};

}  // namespace

void check_rendezvous(const std::vector<Schedule>& stages) {
  RendezvousWalk(stages).run();
}

}  // namespace shardwright::sim
