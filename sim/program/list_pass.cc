// SPDX-License-Identifier: Apache-2.0
#include "sim/program/list_pass.h"

#include <algorithm>
#include <utility>

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
Op& ListPass::mark(Phase phase) {
  Op marker;
  marker.phase = phase;
  marker.work.kernels = 0;
  computed_ = pass_.ops.size();
  return push(marker);
}

void ListPass::record_computed(Phase phase) {
  if (computed_ == kNone) mark(phase);
  pass_.ops[computed_].record = reference(UnitEvent::kComputed);
}

void ListPass::push_collective(const Op& op) {
  if (op.joins && in_flight_) awaited_ = true;
  const bool with_list = op.collective.overlap == Overlap::kOtherMicroBatch;
  // In order: whoever waits for this one has waited for those before it.
  if (awaited_ && op.collective.overlap != Overlap::kNone) wait(mark(op.phase), last_);
  if (!with_list) record_computed(op.phase);
  Op& pushed = push(op);
  pushed.work.kind = WorkKind::kCollective;
  pushed.work.group = op.collective.group;
  pushed.stream = kUnitCommunication;
  if (!with_list) wait(pushed, UnitEvent::kComputed);
  last_ = last_ == UnitEvent::kArrived ? UnitEvent::kArrivedToo : UnitEvent::kArrived;
  pushed.record = reference(last_);
  in_flight_ = true;
  awaited_ = op.collective.overlap == Overlap::kNone;
}

void ListPass::push_compute(const Op& op) {
  if (op.joins && in_flight_) awaited_ = true;
  Op& pushed = push(op);
  if (std::exchange(awaited_, false)) {
    wait(pushed, last_);
    in_flight_ = false;
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
  if (!in_flight_) return;
  awaited_ = in_flight_ = false;
  wait(mark(phase), last_);
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
      pass_.memory.push_back(*action);
      pass_.memory.back().op = static_cast<std::uint32_t>(pass_.ops.size() - 1);
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
