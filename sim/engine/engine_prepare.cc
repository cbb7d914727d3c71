// SPDX-License-Identifier: Apache-2.0
// From a schedule to the tables that a run reads, and a machine on which nothing has happened.
#include <algorithm>
#include <cstdlib>

#include "sim/core/base/check.h"
#include "sim/engine/engine_impl.h"

namespace shardwright::sim {

void Engine::Impl::prepare(const Schedule& schedule, const std::vector<OpCost>& costs) {
  SHARDWRIGHT_CHECK(costs.size() == schedule.ops.size(), "{} costs for {} operations", costs.size(),
                    schedule.ops.size());
  schedule_ = &schedule;
  copy_operations(costs);
  prepare_events();
  prepare_streams();
  prepare_blocks();
  prepare_sections();
  clear_state();
}

Engine::Impl::Class Engine::Impl::class_of(const Op& op, Nanoseconds alone_ns) const {
  if (op.work.kind == WorkKind::kHost) return Class::kHost;
  if (alone_ns <= 0) return Class::kNone;
  if (op.work.kind == WorkKind::kTransfer) return Class::kTransfer;
  return op.work.kind == WorkKind::kCollective ? Class::kCollective : Class::kKernel;
}

void Engine::Impl::copy_operations(const std::vector<OpCost>& costs) {
  hot_.resize(costs.size());
  for (std::size_t i = 0; i < hot_.size(); ++i) {
    const Op& op = schedule_->ops[i];
    HotOp& hot = hot_[i];
    hot.alone_ns = costs[i].alone_ns;
    hot.contended_ns = costs[i].contended_ns;
    hot.host_ns = costs[i].host_ns;
    hot.record = op.record;
    hot.stream = options_.in_order ? std::uint8_t{0} : op.stream;
    hot.phase = op.phase;
    hot.group = op.collective ? op.collective.group : op.work.group;
    hot.host_waits = op.host_waits;
    hot.cls = class_of(op, hot.alone_ns);
    hot.wait_count = 0;
    for (const EventRef& wait : op.waits) {
      if (wait && !(options_.in_order && !op.host_waits)) hot.waits[hot.wait_count++] = wait;
    }
  }
}

void Engine::Impl::prepare_events() {
  units_ = schedule_->units();
  window_ = kLookAhead;
  for (const HotOp& hot : hot_) {
    for (int i = 0; i < hot.wait_count; ++i)
      window_ = std::max(window_, kLookAhead + std::abs(hot.waits[i].offset));
    window_ = std::max(window_, kLookAhead + std::abs(hot.record.offset));
  }
  events_.assign(schedule_->event_names.size() * static_cast<std::size_t>(units_), -1);
}

void Engine::Impl::prepare_streams() {
  streams_.resize(schedule_->streams.size());
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    StreamState& stream = streams_[s];
    stream.queue.clear();
    stream.head = 0;
    stream.running = -1;
    stream.admitted_after = -1;
    stream.contended = false;
    stream.begun = false;
    stream.priority = schedule_->streams[s].priority;
    stream.collective_priority = schedule_->streams[s].collective_priority;
  }
}

void Engine::Impl::note_host_wait(const HotOp& hot) {
  if (!hot.host_waits || hot.wait_count == 0) return;
  const EventRef wait = hot.waits[0];
  const auto equal = [wait](EventRef known) {
    return known.name == wait.name && known.offset == wait.offset;
  };
  if (std::none_of(host_waits_.begin(), host_waits_.end(), equal)) host_waits_.push_back(wait);
}

void Engine::Impl::prepare_blocks() {
  const std::size_t blocks = schedule_->blocks.size();
  stream_mask_.assign(blocks, 0);
  boundary_op_.assign(blocks, kNoIndex);
  host_waits_.clear();
  for (std::size_t b = 0; b < blocks; ++b) {
    const Block& block = schedule_->blocks[b];
    for (std::uint32_t i = block.first_op; i < block.first_op + block.op_count; ++i) {
      if (hot_[i].cls == Class::kHost) {
        note_host_wait(hot_[i]);
        continue;
      }
      stream_mask_[b] |= bit(hot_[i].stream);
      if (hot_[i].stream == 0) boundary_op_[b] = i;
    }
  }
  // A block looks one block ahead, so that work which may start early has been issued.
  StreamSet next = 0;
  for (std::size_t b = blocks; b-- > 0;) {
    const StreamSet own = stream_mask_[b];
    stream_mask_[b] = own | next;
    next = own;
  }
}

void Engine::Impl::prepare_sections() {
  section_boundary_block_.assign(schedule_->sections.size(), kNoIndex);
  for (std::size_t s = 0; s < schedule_->sections.size(); ++s) {
    const Section& section = schedule_->sections[s];
    for (std::uint32_t b = section.first_block; b < section.first_block + section.block_count;
         ++b) {
      if (boundary_op_[b] != kNoIndex) section_boundary_block_[s] = b;
    }
  }
}

void Engine::Impl::clear_state() {
  instances_.clear();
  cursor_ = {};
  while (!cursor_.at_end && schedule_->sections[cursor_.section].block_count == 0) {
    if (++cursor_.section == schedule_->sections.size()) cursor_.at_end = true;
  }
  if (!cursor_.at_end) cursor_.block = schedule_->sections[cursor_.section].first_block;
  now_ns_ = host_clock_ns_ = last_done_ns_ = 0;
  drained_for_ = -1;
  blocked_on_ = active_ = last_served_ = pending_boundary_ = -1;
  draining_ = host_bound_ = false;
  running_ = kernels_ = collectives_ = queued_ = 0;
  acc_ = {};
  block_snapshot_count_ = section_snapshot_count_ = 0;
  snapshot_block_ = snapshot_section_ = kNoIndex;
  simulated_ = 0;
  completion_ns.clear();
  issue_ns.clear();
}

}  // namespace shardwright::sim
