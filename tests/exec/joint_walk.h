// SPDX-License-Identifier: Apache-2.0
// The slow reference of virtual clocks: the schedules of all ranks, event by event, by the joint
// engine (tests/sim/joint_engine.h), which knows neither executor nor simulator.
//
// Each stream of each rank is an actor. What waits for an event gets a message that takes no time
// from whatever recorded it last, in the host's order; members of a collective meet; messages
// between stages are messages. Slots that messages lie in are waited for as memory of the plan
// says.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "exec/step_memory.h"
#include "sim/core/arena.h"
#include "sim/core/layout.h"
#include "sim/core/schedule.h"
#include "tests/sim/joint_engine.h"

namespace shardwright::exec::testing {

class JointWalk {
 public:
  using Lasts = std::function<Nanoseconds(std::int64_t rank, const OpInstance& at, const Op& op)>;
  JointWalk(const std::vector<Schedule>& stages, const RankMesh& mesh, const Lasts& lasts) {
    for (std::int64_t rank = 0; rank < mesh.ranks; ++rank) {
      const auto stage = static_cast<std::size_t>(mesh.place_of(rank).pp);
      Rank walk(stages[stage], mesh, rank, lasts);
      streams_.push_back(std::ssize(stages[stage].streams));
      first_actor_.push_back(first_actor_.empty() ? 0
                                                  : first_actor_.back() + *(streams_.end() - 2));
      for (auto& actor : walk.actors()) engine_.add_rank(flat(actor));
    }
    completes_ = engine_.run();
  }

  bool completes() const { return completes_; }
  std::pair<Nanoseconds, Nanoseconds> span(std::int64_t rank, std::uint8_t stream, OpId id) const {
    const auto actor =
        static_cast<std::size_t>(first_actor_[static_cast<std::size_t>(rank)] + stream);
    return {engine_.mark(actor, fmt::format("begin {}", id)),
            engine_.mark(actor, fmt::format("end {}", id))};
  }

 private:
  using Instruction = sim::reference::Instruction;
  using Kind = Instruction::Kind;
  /// Where an event is recorded, messages for those who will wait for it.
  using Group = std::vector<Instruction>;
  using Actor = std::vector<Group>;

  static std::vector<Instruction> flat(const Actor& actor) {
    std::vector<Instruction> all;
    for (const Group& group : actor) all.insert(all.end(), group.begin(), group.end());
    return all;
  }

  /// The host of a rank.
  class Rank {
   public:
    Rank(const Schedule& schedule, const RankMesh& mesh, std::int64_t rank, const Lasts& lasts)
        : schedule_(schedule),
          mesh_(mesh),
          rank_(rank),
          lasts_(lasts),
          actors_(schedule.streams.size()),
          arena_(plan_arena(schedule)),
          activations_(schedule, arena_, &nothing_) {
      for_each_op(schedule, [&](const OpInstance& at, const Op& op) { visit(at, op); });
    }
    std::vector<Actor>& actors() { return actors_; }

   private:
    struct Recorded {
      std::size_t stream = 0, group = 0;
    };

    void visit(const OpInstance& at, const Op& op) {
      const bool is_message = op.kind == OpKind::kSend || op.kind == OpKind::kReceive;
      if (op.kind == OpKind::kHostWork || (is_message && op.peer < 0)) {
        wait_for(at, op);
        return record_for(at, op);
      }
      if (op.kind == OpKind::kSynchronize) {
        const auto streams = static_cast<int>(actors_.size());
        for (std::size_t s = 0; s < actors_.size(); ++s)
          add(s, {Kind::kCollective, 0, fmt::format("rank {} waits at {}", rank_, at.id), streams});
        return;
      }
      if (arena_.message_slots > 0)
        activations_.set_micro_batch(static_cast<std::int32_t>(at.micro_step));
      if (in_head_ == 0) {
        // The head's operations run together, and memory follows them.
        const std::uint32_t count = op.kind == OpKind::kHeadProjection ? head_ops(at) : 1;
        acquire(at, count - 1);
        OpInstance here = at;
        for (std::uint32_t i = 0; i < count; ++i, ++here.op, ++here.id) {
          const Op& part = schedule_.ops[here.op];
          wait_for(here, part);
          if (part.kind != OpKind::kHostWork) run(here, part);
          record_for(here, part);
        }
        in_head_ = count;
      }
      --in_head_;
      release(at);
      record_for(at, op);
    }

    std::uint32_t head_ops(const OpInstance& at) const {
      for (std::uint32_t i = at.op; i < schedule_.ops.size(); ++i) {
        const Op& op = schedule_.ops[i];
        if (op.kind == OpKind::kWeightGradient && op.weight == Weight::kHead) return i + 1 - at.op;
      }
      return 1;
    }

    void run(const OpInstance& at, const Op& op) {
      const Nanoseconds takes = lasts_(rank_, at, op);
      mark(op.stream, fmt::format("begin {}", at.id));
      if (op.kind == OpKind::kSend || op.kind == OpKind::kReceive) {
        pass_message(op, takes);
      } else if (op.work.kind == WorkKind::kCollective) {
        meet(op.stream, op.work.group, fmt::format("{}", at.id), takes);
      } else if (op.kind == OpKind::kGradientNorm && norms_++ == 0) {
        meet(op.stream, CommGroup::kWorld, "norm", takes);
      } else {
        add(op.stream, {Kind::kCompute, takes});
      }
      mark(op.stream, fmt::format("end {}", at.id));
    }

    void pass_message(const Op& op, Nanoseconds takes) {
      const std::int64_t peer =
          mesh_.members(CommGroup::kPipeline, rank_)[static_cast<std::size_t>(op.peer)];
      const bool sends = op.kind == OpKind::kSend;
      const auto [from, to] = sends ? std::pair(rank_, peer) : std::pair(peer, rank_);
      const int number = messages_[{sends, op.peer, op.channel}]++;
      const std::string key =
          fmt::format("message {} from {} to {} by {}", number, from, to, op.channel);
      add(op.stream, {sends ? Kind::kSend : Kind::kReceive, takes, key});
      add(op.stream, {Kind::kCompute, takes});
    }

    void meet(std::uint8_t stream, CommGroup which, const std::string& what, Nanoseconds takes) {
      const auto members = mesh_.members(which, rank_);
      add(stream, {Kind::kCollective, takes,
                   fmt::format("{} of {} {}", what, static_cast<int>(which), members.front()),
                   static_cast<int>(members.size())});
    }

    void add(std::size_t stream, Instruction instruction) {
      actors_[stream].push_back({std::move(instruction)});
    }
    void mark(std::size_t stream, std::string name) {
      add(stream, {Kind::kMark, 0, std::move(name)});
    }

    void record(std::size_t stream, const std::string& event) {
      actors_[stream].emplace_back();
      recorded_[event] = {stream, actors_[stream].size() - 1};
    }
    void wait(std::size_t stream, const std::string& event) {
      const auto known = recorded_.find(event);
      if (known == recorded_.end() || known->second.stream == stream) return;
      const std::string key = fmt::format("rank {} wait {}", rank_, waits_++);
      actors_[known->second.stream][known->second.group].push_back({Kind::kSend, 0, key});
      add(stream, {Kind::kReceive, 0, key});
    }

    /// Empty: there is no such unit.
    std::string event(const OpInstance& at, const EventRef& ref) const {
      const std::int32_t unit = at.unit + ref.offset;
      if (!ref || unit < 0 || unit >= schedule_.units()) return "";
      return fmt::format("event {} of {}", ref.name, unit);
    }
    void wait_for(const OpInstance& at, const Op& op) {
      for (const EventRef& ref : op.waits) wait(op.stream, event(at, ref));
    }
    void record_for(const OpInstance& at, const Op& op) {
      const std::string name = event(at, op.record);
      if (!name.empty()) record(op.stream, name);
    }

    template <typename F>
    void for_actions(const OpInstance& at, std::uint32_t more, bool acquires, const F& f) {
      const Block& block = schedule_.blocks[at.block];
      const std::uint32_t local = at.op - block.first_op;
      for (std::uint32_t i = block.first_action; i < block.first_action + block.action_count; ++i) {
        const MemoryAction& action = schedule_.memory[i];
        if (action.op < local || action.op > local + more) continue;
        if (action.acquire == acquires && action.bytes > 0) f(i, action, action.op - local);
      }
    }
    void acquire(const OpInstance& at, std::uint32_t more) {
      std::map<std::uint32_t, std::uint32_t> ordinals;
      for_actions(at, more, true, [&](std::uint32_t i, const MemoryAction&, std::uint32_t behind) {
        const std::int32_t slot =
            activations_.acquire(i, at.unit, at.id + behind, ordinals[behind]++);
        if (slot >= 0) wait(schedule_.ops[at.op + behind].stream, fmt::format("slot {}", slot));
      });
    }
    void release(const OpInstance& at) {
      for_actions(at, 0, false, [&](std::uint32_t i, const MemoryAction&, std::uint32_t) {
        const std::int32_t slot = activations_.released(i, at.unit).slot;
        if (slot >= 0) record(schedule_.ops[at.op].stream, fmt::format("slot {}", slot));
      });
    }

    const Schedule& schedule_;
    const RankMesh& mesh_;
    std::int64_t rank_;
    const Lasts& lasts_;
    std::vector<Actor> actors_;
    ArenaPlan arena_;
    std::byte nothing_{};  // where places would begin: nothing is written
    Activations activations_;
    std::map<std::string, Recorded> recorded_;
    std::map<std::tuple<bool, int, int>, int> messages_;
    std::uint32_t in_head_ = 0;
    int norms_ = 0, waits_ = 0;
  };

  sim::reference::JointEngine engine_;
  std::vector<std::int64_t> streams_, first_actor_;
  bool completes_ = false;
};

}  // namespace shardwright::exec::testing
