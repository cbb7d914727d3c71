// SPDX-License-Identifier: Apache-2.0
#include "sim/pipeline/completes.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
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
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/memory_actions.h"
#include "sim/core/message_queue.h"

namespace shardwright::sim {

namespace {

/// A post or a fetch.
struct StageMessage {
  std::size_t channel = 0;  // index into those of the step
  const Op* op = nullptr;
  std::optional<Action> pass;  // nothing: what stages exchange behind their passes
  bool sends() const { return op->kind == OpKind::kSend; }
};

struct StepChannel {
  std::size_t from = 0, to = 0;
  int number = 0;
  std::vector<const StageMessage*> posts, fetches;
  std::size_t posted = 0, fetched = 0;  // of the walk
};

[[noreturn]] void refuse_step(const std::string& why) {
  throw InvalidPlan("a step of this pipeline would not end: " + why);
}

class MessageWalk {
 public:
  explicit MessageWalk(const std::vector<Schedule>& stages) : programs_(stages.size()) {
    for (std::size_t s = 0; s < stages.size(); ++s) list(stages[s], s);
    for (const auto& program : programs_) {
      for (const StageMessage& message : program) {
        StepChannel& channel = channels_[message.channel];
        (message.sends() ? channel.posts : channel.fetches).push_back(&message);
      }
    }
  }

  void check_partners() const {
    for (const StepChannel& channel : channels_) {
      const std::size_t both = std::min(channel.posts.size(), channel.fetches.size());
      for (std::size_t k = 0; k < both; ++k)
        check_alike(channel, k, *channel.posts[k], *channel.fetches[k]);
    }
    for (const StepChannel& channel : channels_) {
      const auto &posts = channel.posts, &fetches = channel.fetches;
      if (posts.size() < fetches.size()) {
        refuse_step(fmt::format(
            "stage {} waits for the input of {} from stage {}, which sends {} messages on channel "
            "{} and not {}",
            channel.to, message_name(fetches[posts.size()]->pass), channel.from, posts.size(),
            channel.number, fetches.size()));
      }
      if (fetches.size() < posts.size()) {
        refuse_step(
            fmt::format("stage {} never takes {} of stage {}, whose channel {} has {} messages "
                        "where {} are taken",
                        channel.to, message_name(posts[fetches.size()]->pass), channel.from,
                        channel.number, posts.size(), fetches.size()));
      }
    }
  }

  void check_order() {
    next_.assign(programs_.size(), 0);
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t s = 0; s < programs_.size(); ++s) {
        while (!is_done(s) && pass(programs_[s][next_[s]])) {
          ++next_[s];
          moved = true;
        }
      }
    }
    for (std::size_t s = 0; s < programs_.size(); ++s) {
      if (!is_done(s)) refuse_step(cycle_behind(s));
    }
  }

 private:
  /// The messages of a stage, in host order.
  void list(const Schedule& schedule, std::size_t stage) {
    std::vector<std::vector<StageMessage>> of_block(schedule.blocks.size());
    for (std::size_t b = 0; b < schedule.blocks.size(); ++b) {
      const Block& block = schedule.blocks[b];
      for (const Op& op : schedule.ops_of(block)) {
        if (op.work.kind == WorkKind::kTransfer && op.peer >= 0)
          of_block[b].push_back({channel_of_op(op, stage), &op, {}});
      }
    }
    for (const Section& section : schedule.sections) {
      for (std::int32_t r = 0; r < section.repeats; ++r) {
        for (std::uint32_t b = 0; b < section.block_count; ++b) {
          const std::uint32_t at = section.first_block + b;
          for (std::int32_t i = 0; i < schedule.blocks[at].repeats; ++i) {
            for (StageMessage message : of_block[at]) {
              message.pass = section.pass;
              programs_[stage].push_back(message);
            }
          }
        }
      }
    }
  }

  std::size_t channel_of_op(const Op& op, std::size_t stage) {
    const auto peer = static_cast<std::size_t>(op.peer);
    SHARDWRIGHT_CHECK(peer < programs_.size() && peer != stage,
                      "stage {} of {} has a message to or from stage {}", stage, programs_.size(),
                      peer);
    const bool sends = op.kind == OpKind::kSend;
    const std::size_t from = sends ? stage : peer, to = sends ? peer : stage;
    const auto [at, fresh] = places_.try_emplace({from, to, op.channel}, channels_.size());
    if (fresh) channels_.push_back({from, to, op.channel, {}, {}});
    return at->second;
  }

  static void check_alike(const StepChannel& channel, std::size_t k, const StageMessage& post,
                          const StageMessage& fetch) {
    const auto direction = [](const StageMessage& message) {
      return message.pass->kind == PassKind::kForward;
    };
    const bool alike = post.pass.has_value() == fetch.pass.has_value() &&
                       (!post.pass || (post.pass->micro_batch == fetch.pass->micro_batch &&
                                       direction(post) == direction(fetch)));
    if (alike && post.op->work.bytes == fetch.op->work.bytes) return;
    refuse_step(fmt::format(
        "stage {} takes message {} of channel {}, {} bytes of {}, for the {} bytes that {} expects "
        "from stage {}",
        channel.to, k, channel.number, post.op->work.bytes, message_name(post.pass),
        fetch.op->work.bytes, message_name(fetch.pass), channel.from));
  }

  bool is_done(std::size_t stage) const { return next_[stage] == programs_[stage].size(); }

  bool pass(const StageMessage& message) {
    StepChannel& channel = channels_[message.channel];
    if (message.sends()) {
      ++channel.posted;
    } else if (channel.fetched == channel.posted) {
      return false;
    } else {
      ++channel.fetched;
    }
    return true;
  }

  /// What a stage that is not done waits for. Each message meets one, so whoever sends it is not
  /// done either.
  const StepChannel& awaited(std::size_t stage) const {
    return channels_[programs_[stage][next_[stage]].channel];
  }

  std::string cycle_behind(std::size_t stage) const {
    std::vector<bool> seen(programs_.size());
    while (!seen[stage]) {
      seen[stage] = true;
      stage = awaited(stage).from;
    }
    std::string text = fmt::format("stage {}", stage);
    std::size_t at = stage;
    do {
      const StepChannel& channel = awaited(at);
      text += fmt::format("{} waits for {} from stage {}", at == stage ? "" : ", which",
                          message_name(channel.posts[channel.posted]->pass), channel.from);
      at = channel.from;
    } while (at != stage);
    return text;
  }

  std::vector<std::vector<StageMessage>> programs_;  // by stage
  std::vector<StepChannel> channels_;
  std::map<std::tuple<std::size_t, std::size_t, int>, std::size_t> places_;  // of channels
  std::vector<std::size_t> next_;                                            // by stage
};

}  // namespace

std::string message_name(const std::optional<Action>& pass) {
  if (!pass) return "the tied embedding's gradient";
  return fmt::format("{} {} of chunk {}", pass->kind == PassKind::kForward ? "forward" : "backward",
                     pass->micro_batch, pass->chunk);
}

void check_completes(const std::vector<Schedule>& stages) {
  MessageWalk walk(stages);
  walk.check_partners();
  walk.check_order();
}

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
