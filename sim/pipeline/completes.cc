// SPDX-License-Identifier: Apache-2.0
#include "sim/pipeline/completes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "sim/core/base/check.h"
#include "sim/core/base/invalid_plan.h"

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
      for (std::uint32_t i = 0; i < block.op_count; ++i) {
        const Op& op = schedule.ops[block.first_op + i];
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

}  // namespace shardwright::sim
