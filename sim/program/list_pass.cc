// SPDX-License-Identifier: Apache-2.0
#include "sim/program/list_pass.h"

#include <algorithm>
#include <utility>

#include "sim/core/memory_actions.h"

namespace shardwright::sim {

namespace {

EventRef reference(UnitEvent event) {
  return {static_cast<std::uint8_t>(event), 0};
}

}  // namespace

Op& ListPass::push(const Op& op) {
  Op& pushed = pass_.ops.emplace_back(op);
  pushed.captured = is_captured(op, graphs_);
  pushed.work.host_s += std::exchange(host_s_, 0);
  return pushed;
}

void ListPass::wait(Op& op, UnitEvent event) const {
  for (EventRef& wait : op.waits) {
    if (wait == reference(event)) return;
    if (wait) continue;
    wait = reference(event);
    return;
  }
}

/// A place in the compute stream that takes no time.
Op& ListPass::mark(Phase phase, bool deferrable) {
  Op marker;
  marker.phase = phase;
  marker.deferrable = deferrable;
  marker.work.kernels = 0;
  computed_ = pass_.ops.size();
  return push(marker);
}

void ListPass::record_computed(Phase phase) {
  if (computed_ == kNone) mark(phase);
  pass_.ops[computed_].record = reference(UnitEvent::kComputed);
}

void ListPass::push_collective(const Op& op) {
  if (!in_flight_.empty()) {
    if (op.joins) awaited_ = true;
    if (pass_.ops[in_flight_.back()].deferrable != op.deferrable) join(op.phase);
  }
  const bool with_list = op.collective.overlap == Overlap::kOtherMicroBatch;
  // In order: whoever waits for this one has waited for those before it.
  if (awaited_ && op.collective.overlap != Overlap::kNone) join(op.phase);
  const bool with_other_part =
      computed_ != kNone && pass_.ops[computed_].deferrable != op.deferrable;
  if (!with_list && with_other_part) mark(op.phase, op.deferrable);
  if (!with_list) record_computed(op.phase);
  Op& pushed = push(op);
  pushed.work.kind = WorkKind::kCollective;
  pushed.work.group = op.collective.group;
  pushed.stream = kUnitCommunication;
  if (!with_list) wait(pushed, UnitEvent::kComputed);
  last_ = last_ == UnitEvent::kArrived ? UnitEvent::kArrivedToo : UnitEvent::kArrived;
  pushed.record = reference(last_);
  in_flight_.push_back(pass_.ops.size() - 1);
  awaited_ = op.collective.overlap == Overlap::kNone;
}

void ListPass::push_compute(const Op& op) {
  if (op.joins && !in_flight_.empty()) awaited_ = true;
  Op& pushed = push(op);
  if (std::exchange(awaited_, false)) {
    wait(pushed, last_);
    in_flight_.clear();
  }
  computed_ = pass_.ops.size() - 1;
}

/// The host goes on when the last operation has ended, `wakeup_s` later.
void ListPass::wait_for_device(Phase phase, double wakeup_s) {
  record_computed(phase);
  Op host;
  host.phase = phase;
  host.host_waits = true;
  host.work.kind = WorkKind::kHost;
  host.work.host_s = wakeup_s;
  host.waits[0] = reference(UnitEvent::kComputed);
  pass_.ops.push_back(host);
}

void ListPass::join(Phase phase) {
  if (in_flight_.empty()) return;
  wait(mark(phase, pass_.ops[in_flight_.back()].deferrable), last_);
  awaited_ = false;
  in_flight_.clear();
  for (const MemoryAction& death : std::exchange(outstanding_, {})) add(death);
}

/// What the last operation does.
void ListPass::add(MemoryAction action) {
  action.op = static_cast<std::uint32_t>(pass_.ops.size() - 1);
  pass_.memory.push_back(action);
}

/// Whether a collective touches the tensor that compute does not wait for next.
bool ListPass::is_in_flight(const MemoryAction& action) const {
  return memory_ == MemoryManager::kStatic && !awaited_ &&
         std::any_of(in_flight_.begin(), in_flight_.end(),
                     [&](std::size_t at) { return touches(pass_.ops[at], action); });
}

void ListPass::append(const Ops& list, const std::vector<MemoryAction>& lifetimes) {
  if (list.empty()) return;
  pass_.ops.reserve(pass_.ops.size() + list.size() + list.size() / 4);  // and what waits
  pass_.memory.reserve(pass_.memory.size() + lifetimes.size());
  if (graphs_ != CudaGraphs::kNone && graphs_ != CudaGraphs::kStep)
    host_s_ += software_.graph_launch_s;
  // What a strategy asks of the next operation that computes is the first one's to do.
  if (list.front().work.kind == WorkKind::kNone) mark(list.front().phase);
  auto action = lifetimes.begin();
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Op& op = list[i];
    if (op.work.kind == WorkKind::kNone) {
      if (op.collective) push_collective(op);
    } else {
      push_compute(op);
    }
    for (; action != lifetimes.end() && action->op == i; ++action) {
      if (!action->acquire && is_in_flight(*action)) {
        outstanding_.push_back(*action);
      } else {
        add(*action);
      }
    }
    if (in_flight_.empty()) {
      for (const MemoryAction& death : std::exchange(outstanding_, {})) add(death);
    }
    const bool reads = op.host_reads && graphs_ != CudaGraphs::kStep;
    if (reads) {
      wait_for_device(op.phase, software_.host_sync_s);
    } else if (software_.blocking_launches) {
      wait_for_device(op.phase, 0);
    }
  }
  join(list.back().phase);
}

UnitPass ListPass::take() {
  // What it records of the whole pass is the last one's.
  const bool ends = computed_ != kNone && computed_ + 1 == pass_.ops.size();
  if (!ends || pass_.ops.back().record)
    mark(pass_.ops.empty() ? Phase::kForward : pass_.ops.back().phase);
  computed_ = kNone;
  return std::exchange(pass_, {});
}

}  // namespace shardwright::sim
