// SPDX-License-Identifier: Apache-2.0
// The host: issues operations in order, runs ahead of the device, and blocks where the schedule
// says.
#include <algorithm>

#include "sim/engine/engine_impl.h"

namespace shardwright::sim {

std::int32_t* Engine::Impl::event_slot(std::uint8_t name, std::int32_t unit) {
  if (unit < 0 || unit >= units_) return nullptr;
  return &events_[static_cast<std::size_t>(name) * static_cast<std::size_t>(units_) +
                  static_cast<std::size_t>(unit)];
}

void Engine::Impl::advance_cursor() {
  const Schedule& s = *schedule_;
  ++cursor_.id;
  if (++cursor_.op < s.blocks[cursor_.block].op_count) return;
  cursor_.op = 0;
  if (++cursor_.rep < s.blocks[cursor_.block].repeats) return;
  cursor_.rep = 0;
  const Section* section = &s.sections[cursor_.section];
  if (++cursor_.block < section->first_block + section->block_count) return;
  if (++cursor_.micro < section->repeats) {
    cursor_.block = section->first_block;
    return;
  }
  cursor_.micro = 0;
  do {
    if (++cursor_.section == s.sections.size()) {
      cursor_.at_end = true;
      return;
    }
  } while (s.sections[cursor_.section].block_count == 0);
  cursor_.block = s.sections[cursor_.section].first_block;
}

/// Goes on when what the host blocks on has completed.
bool Engine::Impl::stop_waiting() {
  const Instance& awaited = instance(blocked_on_);
  if (awaited.done_ns == kPending) return false;
  const HotOp& waiting = hot_[schedule_->blocks[cursor_.block].first_op + cursor_.op];
  host_clock_ns_ = std::max(host_clock_ns_, awaited.done_ns + waiting.host_ns);
  blocked_on_ = -1;
  complete_host_operation();
  return true;
}

/// Goes on when every stream has run dry.
bool Engine::Impl::stop_draining() {
  if ((running_ | queued_) != 0) return false;
  host_clock_ns_ = std::max(host_clock_ns_, last_done_ns_);
  draining_ = false;
  if (allocating_) {
    allocating_ = false;
    host_clock_ns_ += (*options_.allocation_ns)[static_cast<std::size_t>(cursor_.id)];
  } else {
    complete_host_operation();
  }
  return true;
}

void Engine::Impl::complete_host_operation() {
  if (options_.timeline != nullptr)
    completion_ns[static_cast<std::size_t>(cursor_.id)] = host_clock_ns_;
  advance_cursor();
}

void Engine::Impl::note_issue() {
  const auto wanted = static_cast<std::size_t>(cursor_.id) + 1;
  if (completion_ns.size() < wanted) {
    completion_ns.resize(wanted, 0);
    issue_ns.resize(wanted, 0);
  }
  issue_ns[wanted - 1] = host_clock_ns_;
}

/// Work of the host's own, a wait for an event, or (a wait without one) for the whole device.
void Engine::Impl::issue_to_host(const HotOp& hot, std::int32_t unit) {
  if (!hot.host_waits) {
    host_clock_ns_ += hot.host_ns;
  } else if (hot.wait_count == 0) {
    draining_ = true;
    return;
  } else if (const std::int32_t* slot = event_slot(hot.waits[0].name, unit + hot.waits[0].offset);
             slot != nullptr && *slot >= 0) {
    const Nanoseconds done = instance(*slot).done_ns;
    if (done == kPending) {
      blocked_on_ = *slot;
      return;
    }
    if (done > host_clock_ns_) host_clock_ns_ = done + hot.host_ns;
  }
  complete_host_operation();
}

void Engine::Impl::issue_to_stream(const HotOp& hot, std::uint32_t index, std::int32_t unit) {
  host_clock_ns_ += hot.host_ns;
  const auto seq = static_cast<std::int32_t>(instances_.size());
  Instance& issued = instances_.emplace_back();
  issued.op = index;
  issued.block = cursor_.block;
  issued.rep = cursor_.rep;
  issued.enqueue_ns = host_clock_ns_;
  issued.done_ns = kPending;
  issued.id = cursor_.id;
  for (int i = 0; i < kMaxWaits; ++i) {
    issued.deps[i] = -1;
    if (i >= hot.wait_count) continue;
    const std::int32_t* slot = event_slot(hot.waits[i].name, unit + hot.waits[i].offset);
    if (slot != nullptr) issued.deps[i] = *slot;
  }
  if (hot.record) {
    if (std::int32_t* slot = event_slot(hot.record.name, unit + hot.record.offset)) *slot = seq;
  }
  streams_[hot.stream].queue.push_back(seq);
  queued_ |= bit(hot.stream);
  ++simulated_;
  advance_cursor();
}

/// Spends what allocating for the operation takes; true where the device has to be idle first.
bool Engine::Impl::drains_before_issue() {
  if (options_.allocation_ns == nullptr || drained_for_ == cursor_.id) return false;
  const auto id = static_cast<std::size_t>(cursor_.id);
  if (id >= options_.allocation_ns->size()) return false;
  const Nanoseconds cost_ns = (*options_.allocation_ns)[id];
  if (cost_ns <= 0) {
    host_clock_ns_ -= cost_ns;
    if (cost_ns < 0) drained_for_ = cursor_.id;
    return false;
  }
  drained_for_ = cursor_.id;
  draining_ = allocating_ = true;
  return true;
}

/// One move of the host; false when it can make none for now.
bool Engine::Impl::issue_next() {
  if (blocked_on_ >= 0) return stop_waiting();
  if (draining_) return stop_draining();
  if (cursor_.at_end) return false;
  if (options_.in_order) host_clock_ns_ = std::max(host_clock_ns_, now_ns_);
  const Block& block = schedule_->blocks[cursor_.block];
  const std::uint32_t index = block.first_op + cursor_.op;
  const HotOp& hot = hot_[index];
  const std::int32_t unit = block.first_unit + cursor_.rep * block.unit_step;
  if (drains_before_issue()) return true;
  if (options_.timeline != nullptr) note_issue();
  if (hot.cls == Class::kHost) {
    issue_to_host(hot, unit);
  } else {
    issue_to_stream(hot, index, unit);
  }
  return true;
}

void Engine::Impl::issue_as_needed() {
  while (!cursor_.at_end) {
    const bool dry = (stream_mask_[cursor_.block] & ~(running_ | queued_)) != 0;
    if (!(dry || blocked_on_ >= 0 || draining_) || !issue_next()) return;
  }
}

}  // namespace shardwright::sim
