// SPDX-License-Identifier: Apache-2.0
// All ranks of all stages, event by event: the slow reference of the pipeline recurrence.
//
// A rank is an in-order list of instructions: compute, meet the other ranks of its stage in a
// collective, send, receive, or meet its counterpart of a neighbouring stage in a blocking
// transfer. Events are ranks that become free, in a queue by time; a rank that lacks something is
// parked until somebody brings it. Nothing here knows programs, chunks or schedules.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/units.h"

namespace shardwright::sim::reference {

struct Instruction {
  enum class Kind : std::uint8_t { kCompute, kCollective, kSend, kReceive, kMeet, kMark };
  Kind kind = Kind::kCompute;
  Nanoseconds takes = 0;  // compute, collective, rendezvous; of a send until the message is there
  std::string key =
      {};         // of what ranks share: the collective, the message, the rendezvous; or a mark
  int ranks = 1;  // that take part in a collective or rendezvous
};

class JointEngine {
 public:
  /// Returns the number of the rank.
  std::size_t add_rank(std::vector<Instruction> instructions) {
    ranks_.push_back({std::move(instructions), 0, 0});
    return ranks_.size() - 1;
  }

  /// Returns false when ranks wait for one another for ever.
  bool run() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) events_.push({0, r});
    while (!events_.empty()) {
      const auto [now, rank] = events_.top();
      events_.pop();
      step(now, rank);
    }
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const Rank& rank) { return rank.next == rank.instructions.size(); });
  }

  Nanoseconds end_of(std::size_t rank) const { return ranks_[rank].free; }
  /// When a rank came to its mark.
  Nanoseconds mark(std::size_t rank, const std::string& key) const {
    return marks_.at({rank, key});
  }
  std::int64_t messages_sent() const { return sent_; }
  std::int64_t messages_left() const { return std::ssize(messages_); }

 private:
  using Kind = Instruction::Kind;
  using Event = std::pair<Nanoseconds, std::size_t>;
  struct Rank {
    std::vector<Instruction> instructions;
    std::size_t next = 0;
    Nanoseconds free = 0;
  };
  struct Gathering {
    std::vector<std::size_t> ranks;
    Nanoseconds latest = 0;
  };

  void go_on(std::size_t rank, Nanoseconds at) {
    ++ranks_[rank].next;
    ranks_[rank].free = at;
    events_.push({at, rank});
  }

  void step(Nanoseconds now, std::size_t r) {
    Rank& rank = ranks_[r];
    if (rank.next == rank.instructions.size()) return;
    const Instruction& at = rank.instructions[rank.next];
    switch (at.kind) {
      case Kind::kCompute:
        return go_on(r, now + at.takes);
      case Kind::kMark:
        marks_[{r, at.key}] = now;
        return go_on(r, now);
      case Kind::kSend: {
        ++sent_;
        messages_[at.key] = now + at.takes;
        if (const auto waits = waiting_.find(at.key); waits != waiting_.end()) {
          const std::size_t other = waits->second;
          waiting_.erase(waits);
          events_.push({std::max(now, ranks_[other].free), other});
        }
        return go_on(r, now);
      }
      case Kind::kReceive: {
        const auto message = messages_.find(at.key);
        if (message == messages_.end()) {
          rank.free = now;
          waiting_[at.key] = r;
          return;
        }
        const Nanoseconds there = std::max(now, message->second);
        messages_.erase(message);
        return go_on(r, there);
      }
      case Kind::kCollective:
      case Kind::kMeet:
        meet(now, r, at);
    }
  }

  void meet(Nanoseconds now, std::size_t r, const Instruction& at) {
    Gathering& gathering = gatherings_[at.key];
    gathering.ranks.push_back(r);
    gathering.latest = std::max(gathering.latest, now);
    if (std::ssize(gathering.ranks) < at.ranks) return;
    const Nanoseconds end = gathering.latest + at.takes;
    const std::vector<std::size_t> all = std::move(gathering.ranks);
    gatherings_.erase(at.key);
    for (const std::size_t rank : all) go_on(rank, end);
  }

  std::vector<Rank> ranks_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::map<std::string, Nanoseconds> messages_;
  std::map<std::string, std::size_t> waiting_;
  std::map<std::string, Gathering> gatherings_;
  std::map<std::pair<std::size_t, std::string>, Nanoseconds> marks_;
  std::int64_t sent_ = 0;
};

}  // namespace shardwright::sim::reference
