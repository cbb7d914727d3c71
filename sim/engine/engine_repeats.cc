// SPDX-License-Identifier: Apache-2.0
// How the engine skips repeated layers and micro-batches: at the last compute operation of each
// repetition it notes its whole state relative to the clock; two equal states mean that everything
// in between happens again, so the clock jumps.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>

#include "sim/engine/engine_impl.h"

namespace shardwright::sim {

void Engine::Impl::take_snapshot(Snapshot& snapshot, std::int32_t base_seq, std::int32_t rep) {
  std::vector<std::int64_t>& state = snapshot.state;
  state.clear();
  snapshot.now_ns = now_ns_;
  snapshot.host_ns = host_clock_ns_;
  snapshot.accumulated = acc_;
  snapshot.rep = rep;
  snapshot.host_bound = host_bound_;
  host_bound_ = false;
  const auto relative = [base_seq](std::int32_t seq) -> std::int64_t {
    return seq < 0 ? std::numeric_limits<std::int32_t>::min() : seq - base_seq;
  };
  state.insert(state.end(), {static_cast<std::int64_t>(cursor_.op), relative(blocked_on_),
                             draining_, active_, last_served_, collectives_});
  for (const StreamState& stream : streams_) {
    state.insert(
        state.end(),
        {relative(stream.running), stream.running >= 0 ? stream.remaining_ns : 0,
         stream.contended && stream.running >= 0, stream.begun, relative(stream.admitted_after),
         static_cast<std::int64_t>(stream.queue.size() - stream.head)});
    if (!stream.empty()) state.push_back(relative(stream.queue[stream.head]));
    for (std::size_t i = stream.head; i < stream.queue.size(); ++i) {
      const Nanoseconds ahead = instance(stream.queue[i]).enqueue_ns - now_ns_;
      if (ahead > 0) state.push_back(ahead);
    }
  }
  if (host_waits_.empty()) return;
  state.push_back(host_clock_ns_ - now_ns_);
  // The events that the host will wait for next: only completions after its own clock hold it up.
  const Block& block = schedule_->blocks[cursor_.block];
  for (const EventRef wait : host_waits_) {
    const std::int32_t reach = std::abs(wait.offset) + kLookAhead;
    for (std::int32_t i = 0; i < reach; ++i) {
      const std::int32_t unit =
          block.first_unit + (cursor_.rep + i) * block.unit_step + wait.offset;
      const std::int32_t* slot = event_slot(wait.name, unit);
      Nanoseconds late = 0;
      if (slot != nullptr && *slot >= 0) {
        const Nanoseconds done = instance(*slot).done_ns;
        late = done == kPending ? kPending : std::max<Nanoseconds>(done - host_clock_ns_, 0);
      }
      state.push_back(late);
    }
  }
}

bool Engine::Impl::same(const Snapshot& a, const Snapshot& b) const {
  // The same lead of the host over the device: whatever it did to this period, it does to the next.
  const Nanoseconds drift = (a.host_ns - a.now_ns) - (b.host_ns - b.now_ns);
  // A host that runs ahead and never binds may also drift further ahead, not fall behind.
  if (drift != 0 && (!host_waits_.empty() || drift > 0 || a.host_bound || b.host_bound))
    return false;
  return a.state == b.state;
}

void Engine::Impl::skip(std::int32_t periods, std::int32_t reps, const Snapshot& now,
                        const Snapshot& before, std::int32_t unit, std::int32_t unit_step) {
  const Nanoseconds shift = (now.now_ns - before.now_ns) * periods;
  const Nanoseconds host_shift = (now.host_ns - before.host_ns) * periods;
  now_ns_ += shift;
  last_done_ns_ += shift;
  host_clock_ns_ += host_shift;
  for (StreamState& stream : streams_) stream.begin_ns += shift;
  const auto add = [periods](Nanoseconds& total, Nanoseconds end, Nanoseconds begin) {
    total += (end - begin) * periods;
  };
  const TimeBreakdown& t1 = now.accumulated.time;
  const TimeBreakdown& t0 = before.accumulated.time;
  add(acc_.time.compute_ns, t1.compute_ns, t0.compute_ns);
  add(acc_.time.exposed_ns, t1.exposed_ns, t0.exposed_ns);
  add(acc_.time.host_ns, t1.host_ns, t0.host_ns);
  add(acc_.time.optimizer_ns, t1.optimizer_ns, t0.optimizer_ns);
  add(acc_.communication_ns, now.accumulated.communication_ns, before.accumulated.communication_ns);
  for (std::size_t i = 0; i < acc_.exposed_ns.size(); ++i)
    add(acc_.exposed_ns[i], now.accumulated.exposed_ns[i], before.accumulated.exposed_ns[i]);
  for (std::size_t i = 0; i < acc_.phase_ns.size(); ++i)
    add(acc_.phase_ns[i], now.accumulated.phase_ns[i], before.accumulated.phase_ns[i]);
  // Whatever may still be waited for moves along with the clock.
  for (Instance& instance : instances_) {
    instance.enqueue_ns += host_shift;
    if (instance.done_ns != kPending) instance.done_ns += shift;
  }
  if (unit_step == 0) return;
  const std::uint32_t block = cursor_.block;
  for (Instance& instance : instances_) {
    if (instance.block == block) instance.rep += reps;
  }
  const std::int32_t distance = reps * unit_step;
  for (std::size_t name = 1; name < schedule_->event_names.size(); ++name) {
    // Towards the units that are skipped, so that no slot is overwritten before it is read.
    const std::int32_t first = distance > 0 ? window_ : -window_;
    const std::int32_t towards = distance > 0 ? -1 : 1;
    for (std::int32_t i = 0; i <= 2 * window_; ++i) {
      const std::int32_t offset = first + i * towards;
      const std::int32_t* from = event_slot(static_cast<std::uint8_t>(name), unit + offset);
      std::int32_t* slot = event_slot(static_cast<std::uint8_t>(name), unit + offset + distance);
      if (from != nullptr && slot != nullptr && *from >= 0) *slot = *from;
    }
  }
}

/// Whether all that runs or waits in a queue lies where `inside` says.
template <typename Inside>
bool Engine::Impl::only_inside(const Inside& inside) const {
  for (StreamSet left = running_ | queued_; left != 0; left &= left - 1) {
    const StreamState& stream = streams_[static_cast<std::size_t>(std::countr_zero(left))];
    if (stream.running >= 0 && !inside(instance(stream.running))) return false;
    for (std::size_t i = stream.head; i < stream.queue.size(); ++i) {
      if (!inside(instance(stream.queue[i]))) return false;
    }
  }
  return true;
}

void Engine::Impl::at_block_boundary(std::int32_t seq) {
  const Instance last = instance(seq);
  const Block& block = schedule_->blocks[last.block];
  if (block.repeats < 5) return;
  if (snapshot_block_ != last.block || last.rep == 0) {
    snapshot_block_ = last.block;
    block_snapshot_count_ = 0;
  }
  if (cursor_.at_end || cursor_.block != last.block || cursor_.rep < last.rep) return;
  if (!only_inside([&](const Instance& open) { return open.block == last.block; })) return;
  if (block_snapshots_.size() <= block_snapshot_count_)
    block_snapshots_.resize(block_snapshot_count_ + 1);
  Snapshot& current = block_snapshots_[block_snapshot_count_++];
  take_snapshot(current, seq, last.rep);
  current.state.push_back(cursor_.rep - last.rep);
  const std::int32_t left = block.repeats - 1 - cursor_.rep;
  for (std::size_t back = 1; back <= 4 && back < block_snapshot_count_; ++back) {
    const Snapshot& before = block_snapshots_[block_snapshot_count_ - 1 - back];
    const std::int32_t period = last.rep - before.rep;
    if (left < period || !same(current, before)) continue;
    const std::int32_t periods = left / period;
    skip(periods, periods * period, current, before, block.first_unit + last.rep * block.unit_step,
         block.unit_step);
    cursor_.rep += periods * period;
    block_snapshot_count_ = 0;
    return;
  }
}

void Engine::Impl::at_section_boundary(std::int32_t seq) {
  const Instance last = instance(seq);
  if (cursor_.at_end) return;
  const std::uint32_t s = cursor_.section;
  const Section& section = schedule_->sections[s];
  if (section.repeats < 4 || last.block != section_boundary_block_[s] ||
      last.rep + 1 != schedule_->blocks[last.block].repeats)
    return;
  if (snapshot_section_ != s) {
    snapshot_section_ = s;
    section_snapshot_count_ = 0;
  }
  const auto inside = [&](const Instance& open) {
    return open.block - section.first_block < section.block_count;
  };
  if (!only_inside(inside)) return;
  if (section_snapshots_.size() <= section_snapshot_count_)
    section_snapshots_.resize(section_snapshot_count_ + 1);
  Snapshot& current = section_snapshots_[section_snapshot_count_++];
  take_snapshot(current, seq, cursor_.micro);
  current.state.insert(current.state.end(),
                       {static_cast<std::int64_t>(cursor_.block), cursor_.rep});
  const std::int32_t left = section.repeats - 1 - cursor_.micro;
  for (std::size_t back = 1; back <= 2 && back < section_snapshot_count_; ++back) {
    const Snapshot& before = section_snapshots_[section_snapshot_count_ - 1 - back];
    const std::int32_t period = current.rep - before.rep;
    if (period <= 0 || left < period || !same(current, before)) continue;
    const std::int32_t periods = left / period;
    skip(periods, 0, current, before, 0, 0);
    cursor_.micro += periods * period;
    section_snapshot_count_ = 0;
    return;
  }
}

}  // namespace shardwright::sim
