// SPDX-License-Identifier: Apache-2.0
// Fake devices that walk the schedules of a pipeline's stages as an executor would: in host order,
// with tensors that live and die and messages between stages, but without numbers.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "sim/core/memory_actions.h"
#include "sim/core/schedule.h"

namespace shardwright::sim {

class StageWalk {
 public:
  explicit StageWalk(const std::vector<Schedule>& stages) {
    for (const Schedule& stage : stages) {
      ranks_.emplace_back(stage);
      for (const MemoryAction& action : stage.memory) exists_.insert(action.tensor);
    }
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t r = 0; r < ranks_.size(); ++r) moved = advance(r) || moved;
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) finish(r);
    for (const auto& [channel, messages] : messages_) {
      if (!messages.empty())
        fault(std::get<0>(channel), fmt::format("{} messages to stage {} are never received",
                                                messages.size(), std::get<1>(channel)));
    }
  }

  /// What is wrong, first things first; empty where the step can be walked.
  const std::vector<std::string>& faults() const { return faults_; }
  /// Most that is alive at once, with what outlives the step.
  Bytes peak_bytes(std::size_t stage) const { return ranks_[stage].peak; }
  std::size_t messages() const { return sent_; }

 private:
  /// Of a tensor: its unit and, where it is the model's, the micro-batch and direction of chunks.
  using Key = std::tuple<Tensor, std::int32_t, std::int32_t>;
  struct Message {
    std::int32_t micro_batch;
    Bytes bytes;
  };
  struct Rank {
    explicit Rank(const Schedule& s) : schedule(&s), actions(s) {
      for_each_op(s, [&](const OpInstance& at, const Op&) { steps.push_back(at); });
      for (const PersistentTensor& tensor : s.persistent) now += tensor.bytes;
      peak = persistent = now;
    }
    const Schedule* schedule;
    MemoryActions actions;
    std::vector<OpInstance> steps;
    std::size_t next = 0;
    std::map<Key, Bytes> live;
    Bytes now = 0, peak = 0, persistent = 0;
  };

  static Key key_of(const Schedule& schedule, const OpInstance& at, Tensor tensor, int offset) {
    const auto& pass = schedule.sections[at.section].pass;
    return {tensor, at.unit + offset, pass && !belongs_to_step(tensor) ? pass->micro_batch : -1};
  }

  void fault(std::size_t stage, const std::string& what) {
    if (faults_.size() < 5) faults_.push_back(fmt::format("stage {}: {}", stage, what));
  }

  bool advance(std::size_t r) {
    Rank& rank = ranks_[r];
    const std::size_t first = rank.next;
    while (rank.next < rank.steps.size() && step(r, rank)) ++rank.next;
    return rank.next > first;
  }

  bool step(std::size_t r, Rank& rank) {
    const Schedule& schedule = *rank.schedule;
    const OpInstance& at = rank.steps[rank.next];
    const Op& op = schedule.ops[at.op];
    const bool message = op.work.kind == WorkKind::kTransfer && op.peer >= 0;
    const auto& pass = schedule.sections[at.section].pass;
    const std::int32_t micro_batch = pass ? pass->micro_batch : -1;
    if (message && op.kind == OpKind::kReceive) {
      auto& arriving = messages_[{op.peer, r, op.channel}];
      if (arriving.empty()) return false;
      const Message got = arriving.front();
      arriving.pop_front();
      if (got.micro_batch != micro_batch || got.bytes != op.work.bytes)
        fault(r, fmt::format("{} gets {} bytes of micro-batch {}", describe(schedule, at),
                             got.bytes, got.micro_batch));
    }
    const std::span<const MemoryAction> actions = rank.actions.of(at);
    for (const Operand& in : op.in) use(r, rank, at, in, actions, "reads");
    for (const Operand& out : op.out) use(r, rank, at, out, actions, "writes");
    for (const MemoryAction& action : actions)
      action.acquire ? acquire(r, rank, at, action) : release(r, rank, at, action);
    if (message && op.kind == OpKind::kSend) {
      ++sent_;
      messages_[{r, op.peer, op.channel}].push_back({micro_batch, op.work.bytes});
    }
    return true;
  }

  /// What is there already, or comes to life with the operation.
  void use(std::size_t r, const Rank& rank, const OpInstance& at, const Operand& operand,
           std::span<const MemoryAction> actions, const char* how) {
    if (!operand || exists_.count(operand.tensor) == 0) return;
    const bool made = std::any_of(actions.begin(), actions.end(), [&](const MemoryAction& action) {
      return action.acquire && action.tensor == operand.tensor && action.offset == operand.offset;
    });
    if (made || rank.live.count(key_of(*rank.schedule, at, operand.tensor, operand.offset)) > 0)
      return;
    fault(r, fmt::format("{} {} {}, which is not there", describe(*rank.schedule, at), how,
                         name_of(operand.tensor)));
  }

  void acquire(std::size_t r, Rank& rank, const OpInstance& at, const MemoryAction& action) {
    const Key key = key_of(*rank.schedule, at, action.tensor, action.offset);
    const bool has_place =
        action.tensor != Tensor::kTemporary && action.tensor != Tensor::kOffloaded;
    if (has_place && !rank.live.emplace(key, action.bytes).second)
      fault(r, fmt::format("{} makes {}, which is there", describe(*rank.schedule, at),
                           name_of(action.tensor)));
    rank.now += action.bytes;
    rank.peak = std::max(rank.peak, rank.now);
  }

  void release(std::size_t r, Rank& rank, const OpInstance& at, const MemoryAction& action) {
    rank.now -= action.bytes;
    if (action.tensor == Tensor::kTemporary || action.tensor == Tensor::kOffloaded) return;
    if (action.offset == kAllUnits) {
      std::erase_if(rank.live,
                    [&](const auto& entry) { return std::get<0>(entry.first) == action.tensor; });
      return;
    }
    const auto found = rank.live.find(key_of(*rank.schedule, at, action.tensor, action.offset));
    if (found == rank.live.end() || found->second < action.bytes) {
      fault(r, fmt::format("{} lets go of {}, which is not there", describe(*rank.schedule, at),
                           name_of(action.tensor)));
    } else if ((found->second -= action.bytes) == 0) {  // of some only its cast stays for a while
      rank.live.erase(found);
    }
  }

  void finish(std::size_t r) {
    const Rank& rank = ranks_[r];
    if (rank.next < rank.steps.size()) {
      const OpInstance& at = rank.steps[rank.next];
      const auto& pass = rank.schedule->sections[at.section].pass;
      fault(r, fmt::format("{} of micro-batch {} waits for ever", describe(*rank.schedule, at),
                           pass ? pass->micro_batch : -1));
    } else if (!rank.live.empty()) {
      const auto& [tensor, unit, micro] = rank.live.begin()->first;
      fault(r, fmt::format("{} of {} and micro-batch {} outlives the step", name_of(tensor),
                           unit_name(*rank.schedule, unit), micro));
    } else if (rank.now != rank.persistent) {
      fault(r, fmt::format("{} bytes outlive the step", rank.now - rank.persistent));
    }
  }

  std::deque<Rank> ranks_;
  std::set<Tensor> exists_;
  std::map<std::tuple<std::size_t, std::size_t, int>, std::deque<Message>> messages_;
  std::vector<std::string> faults_;
  std::size_t sent_ = 0;
};

}  // namespace shardwright::sim
