#include "sim/engine/engine.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/core/check.h"

namespace shardwright::sim {

namespace {

constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

/// Work left, expressed in the other regime's time.
Nanoseconds convert(Nanoseconds remaining, Nanoseconds from, Nanoseconds to) {
  if (from == to || from <= 0) return remaining;
  const double scaled =
      static_cast<double>(remaining) * (static_cast<double>(to) / static_cast<double>(from));
  return std::max<Nanoseconds>(1, static_cast<Nanoseconds>(std::llround(scaled)));
}

}  // namespace

void Engine::prepare(const Schedule& schedule, const std::vector<OpCost>& costs) {
  SHARDWRIGHT_CHECK(costs.size() == schedule.ops.size(), "{} costs for {} operations", costs.size(),
                    schedule.ops.size());
  schedule_ = &schedule;
  hot_.resize(schedule.ops.size());
  for (std::size_t i = 0; i < hot_.size(); ++i) {
    const Op& op = schedule.ops[i];
    HotOp& hot = hot_[i];
    hot.alone_ns = costs[i].alone_ns;
    hot.contended_ns = costs[i].contended_ns;
    hot.host_ns = costs[i].host_ns;
    hot.record = op.record;
    hot.stream = options_.in_order ? std::uint8_t{0} : op.stream;
    hot.phase = op.phase;
    hot.host_waits = op.host_waits;
    hot.wait_count = 0;
    for (const EventRef& wait : op.waits) {
      if (wait && !(options_.in_order && !op.host_waits)) hot.waits[hot.wait_count++] = wait;
    }
    if (op.work.kind == WorkKind::kHost) {
      hot.cls = Class::kHost;
    } else if (op.work.kind == WorkKind::kCollective && hot.alone_ns > 0) {
      hot.cls = Class::kCollective;
    } else if (hot.alone_ns > 0) {
      hot.cls = Class::kKernel;
    } else {
      hot.cls = Class::kNone;
    }
  }
  units_ = schedule.units();
  window_ = kLookAhead;
  for (const HotOp& hot : hot_) {
    for (int i = 0; i < hot.wait_count; ++i)
      window_ = std::max(window_, kLookAhead + std::abs(hot.waits[i].offset));
    window_ = std::max(window_, kLookAhead + std::abs(hot.record.offset));
  }
  events_.assign(schedule.event_names.size() * static_cast<std::size_t>(units_), -1);
  streams_.resize(schedule.streams.size());
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    StreamState& stream = streams_[s];
    stream.queue.clear();
    stream.head = 0;
    stream.running = -1;
    stream.admitted_after = -1;
    stream.contended = false;
    stream.begun = false;
    stream.priority = schedule.streams[s].priority;
    stream.collective_priority = schedule.streams[s].collective_priority;
  }
  const std::size_t blocks = schedule.blocks.size();
  stream_mask_.assign(blocks, 0);
  boundary_op_.assign(blocks, std::numeric_limits<std::uint32_t>::max());
  section_of_block_.assign(blocks, 0);
  host_waits_.clear();
  for (std::size_t b = 0; b < blocks; ++b) {
    const Block& block = schedule.blocks[b];
    for (std::uint32_t i = block.first_op; i < block.first_op + block.op_count; ++i) {
      if (hot_[i].cls == Class::kHost) {
        if (hot_[i].host_waits && hot_[i].wait_count > 0) {
          const EventRef wait = hot_[i].waits[0];
          const auto equal = [wait](EventRef known) {
            return known.name == wait.name && known.offset == wait.offset;
          };
          if (std::none_of(host_waits_.begin(), host_waits_.end(), equal))
            host_waits_.push_back(wait);
        }
        continue;
      }
      stream_mask_[b] |= 1U << hot_[i].stream;
      if (hot_[i].stream == 0) boundary_op_[b] = i;
    }
  }
  section_boundary_block_.assign(schedule.sections.size(),
                                 std::numeric_limits<std::uint32_t>::max());
  for (std::size_t s = 0; s < schedule.sections.size(); ++s) {
    const Section& section = schedule.sections[s];
    for (std::uint32_t b = section.first_block; b < section.first_block + section.block_count;
         ++b) {
      section_of_block_[b] = static_cast<std::uint32_t>(s);
      if (boundary_op_[b] != std::numeric_limits<std::uint32_t>::max())
        section_boundary_block_[s] = b;
    }
  }
  // A block looks one block ahead, so that work which may start early has been issued.
  std::uint32_t next = 0;
  for (std::size_t b = blocks; b-- > 0;) {
    const std::uint32_t own = stream_mask_[b];
    stream_mask_[b] = own | next;
    next = own;
  }
  instances_.clear();
  cursor_ = {};
  while (!cursor_.at_end && schedule.sections[cursor_.section].block_count == 0) {
    if (++cursor_.section == schedule.sections.size()) cursor_.at_end = true;
  }
  if (!cursor_.at_end) cursor_.block = schedule.sections[cursor_.section].first_block;
  now_ns_ = host_clock_ns_ = last_done_ns_ = 0;
  blocked_on_ = active_ = last_served_ = -1;
  draining_ = host_bound_ = false;
  resident_ = 0;
  acc_ = {};
  block_snapshot_count_ = section_snapshot_count_ = 0;
  snapshot_block_ = snapshot_section_ = std::numeric_limits<std::uint32_t>::max();
  simulated_ = 0;
  completion_ns_.clear();
  issue_ns_.clear();
}

std::int32_t* Engine::event_slot(std::uint8_t name, std::int32_t unit) {
  if (unit < 0 || unit >= units_) return nullptr;
  return &events_[static_cast<std::size_t>(name) * static_cast<std::size_t>(units_) +
                  static_cast<std::size_t>(unit)];
}

void Engine::advance_cursor() {
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

bool Engine::issue_next() {
  if (blocked_on_ >= 0) {
    const Instance& awaited = instances_[static_cast<std::size_t>(blocked_on_)];
    if (awaited.done_ns == kPending) return false;
    const HotOp& waiting = hot_[schedule_->blocks[cursor_.block].first_op + cursor_.op];
    host_clock_ns_ = std::max(host_clock_ns_, awaited.done_ns + waiting.host_ns);
    blocked_on_ = -1;
    if (options_.timeline != nullptr)
      completion_ns_[static_cast<std::size_t>(cursor_.id)] = host_clock_ns_;
    advance_cursor();
    return true;
  }
  if (draining_) {
    for (const StreamState& stream : streams_) {
      if (stream.running >= 0 || !stream.empty()) return false;
    }
    host_clock_ns_ = std::max(host_clock_ns_, last_done_ns_);
    draining_ = false;
    if (options_.timeline != nullptr)
      completion_ns_[static_cast<std::size_t>(cursor_.id)] = host_clock_ns_;
    advance_cursor();
    return true;
  }
  if (cursor_.at_end) return false;
  if (options_.in_order) host_clock_ns_ = std::max(host_clock_ns_, now_ns_);
  const Block& block = schedule_->blocks[cursor_.block];
  const std::uint32_t index = block.first_op + cursor_.op;
  const HotOp& hot = hot_[index];
  const std::int32_t unit = block.first_unit + cursor_.rep * block.unit_step;
  if (options_.timeline != nullptr) {
    const auto wanted = static_cast<std::size_t>(cursor_.id) + 1;
    if (completion_ns_.size() < wanted) {
      completion_ns_.resize(wanted, 0);
      issue_ns_.resize(wanted, 0);
    }
    issue_ns_[wanted - 1] = host_clock_ns_;
  }
  if (hot.cls == Class::kHost) {
    if (hot.host_waits && hot.wait_count == 0) {
      draining_ = true;
      return true;
    }
    if (hot.host_waits) {
      const std::int32_t* slot = event_slot(hot.waits[0].name, unit + hot.waits[0].offset);
      if (slot != nullptr && *slot >= 0) {
        const Nanoseconds done = instances_[static_cast<std::size_t>(*slot)].done_ns;
        if (done == kPending) {
          blocked_on_ = *slot;
          return true;
        }
        if (done > host_clock_ns_) host_clock_ns_ = done + hot.host_ns;
      }
    } else {
      host_clock_ns_ += hot.host_ns;
    }
    if (options_.timeline != nullptr)
      completion_ns_[static_cast<std::size_t>(cursor_.id)] = host_clock_ns_;
    advance_cursor();
    return true;
  }
  host_clock_ns_ += hot.host_ns;
  const auto seq = static_cast<std::int32_t>(instances_.size());
  Instance& instance = instances_.emplace_back();
  instance.op = index;
  instance.block = cursor_.block;
  instance.rep = cursor_.rep;
  instance.enqueue_ns = host_clock_ns_;
  instance.done_ns = kPending;
  instance.id = cursor_.id;
  for (int i = 0; i < kMaxWaits; ++i) {
    instance.deps[i] = -1;
    if (i >= hot.wait_count) continue;
    const std::int32_t* slot = event_slot(hot.waits[i].name, unit + hot.waits[i].offset);
    if (slot != nullptr) instance.deps[i] = *slot;
  }
  if (hot.record) {
    if (std::int32_t* slot = event_slot(hot.record.name, unit + hot.record.offset)) *slot = seq;
  }
  streams_[hot.stream].queue.push_back(seq);
  ++simulated_;
  advance_cursor();
  return true;
}

void Engine::issue_as_needed() {
  while (!cursor_.at_end) {
    const std::uint32_t mask = stream_mask_[cursor_.block];
    bool needed = blocked_on_ >= 0 || draining_;
    for (std::size_t s = 0; s < streams_.size() && !needed; ++s) {
      needed = (mask >> s & 1U) != 0 && streams_[s].running < 0 && streams_[s].empty();
    }
    if (!needed || !issue_next()) return;
  }
}

bool Engine::ready(const Instance& instance) const {
  for (std::int32_t dep : instance.deps) {
    if (dep >= 0 && instances_[static_cast<std::size_t>(dep)].done_ns == kPending) return false;
  }
  return true;
}

bool Engine::starts() {
  bool progressed = false;
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    StreamState& stream = streams_[s];
    if (stream.running >= 0 || stream.empty()) continue;
    const std::int32_t seq = stream.queue[stream.head];
    const Instance& instance = instances_[static_cast<std::size_t>(seq)];
    if (instance.enqueue_ns > now_ns_ || !ready(instance)) continue;
    const HotOp& hot = hot_[instance.op];
    if (hot.cls == Class::kCollective) {
      if (stream.admitted_after < 0 && active_ >= 0 &&
          stream.collective_priority >= streams_[static_cast<std::size_t>(active_)].priority) {
        stream.admitted_after = streams_[static_cast<std::size_t>(active_)].running;
      }
      if (stream.admitted_after >= 0 &&
          instances_[static_cast<std::size_t>(stream.admitted_after)].done_ns == kPending)
        continue;
      stream.admitted_after = -1;
      ++resident_;
    }
    if (instance.enqueue_ns == now_ns_ && now_ns_ > 0) host_bound_ = true;
    if (++stream.head == stream.queue.size()) {
      stream.queue.clear();
      stream.head = 0;
    }
    stream.running = seq;
    stream.cls = hot.cls;
    stream.phase = hot.phase;
    stream.alone_ns = stream.remaining_ns = hot.alone_ns;
    stream.contended_ns = hot.contended_ns;
    stream.contended = false;
    stream.begin_ns = now_ns_;
    if (options_.variation != nullptr) vary(stream, instance);
    progressed = true;
    if (hot.cls == Class::kNone) complete(s);
  }
  return progressed;
}

/// A collective is resident from when its own rank joins, and moves once the last one has joined.
void Engine::vary(StreamState& stream, const Instance& instance) {
  const RankVariation& rank = *options_.variation;
  const auto id = static_cast<std::size_t>(instance.id);
  if (stream.cls == Class::kCollective) {
    (*rank.arrival_ns)[id] = now_ns_;
    stream.remaining_ns += std::max<Nanoseconds>(0, (*rank.release_ns)[id] - now_ns_);
  } else if (stream.cls == Class::kKernel) {
    const double factor = (*rank.kernel_factor)[id];
    for (Nanoseconds* time : {&stream.alone_ns, &stream.contended_ns, &stream.remaining_ns}) {
      *time = std::max<Nanoseconds>(
          1, static_cast<Nanoseconds>(std::llround(static_cast<double>(*time) * factor)));
    }
  }
}

void Engine::complete(std::size_t s) {
  StreamState& stream = streams_[s];
  Instance& instance = instances_[static_cast<std::size_t>(stream.running)];
  instance.done_ns = now_ns_;
  last_done_ns_ = now_ns_;
  if (stream.cls == Class::kCollective) --resident_;
  if (active_ == static_cast<std::int32_t>(s)) active_ = -1;
  if (stream.cls == Class::kKernel) last_served_ = static_cast<std::int32_t>(s);
  stream.running = -1;
  if (options_.timeline != nullptr) {
    completion_ns_[static_cast<std::size_t>(instance.id)] = now_ns_;
    if (stream.cls != Class::kNone) {
      Span span;
      span.id = instance.id;
      span.stream = schedule_->ops[instance.op].stream;
      span.begin_ns = stream.begin_ns;
      span.end_ns = now_ns_;
      options_.timeline->spans.push_back(span);
    }
  }
  if (s == 0 && options_.skip_repeats && instance.op == boundary_op_[instance.block]) {
    pending_boundary_ = static_cast<std::int32_t>(&instance - instances_.data());
  }
}

void Engine::choose_kernel() {
  std::int32_t best = active_;
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    if (!streams_[s].runs(Class::kKernel) || static_cast<std::int32_t>(s) == active_) continue;
    if (best < 0) {
      best = static_cast<std::int32_t>(s);
      continue;
    }
    const StreamState& candidate = streams_[s];
    const StreamState& holder = streams_[static_cast<std::size_t>(best)];
    if (candidate.priority != holder.priority) {
      if (candidate.priority < holder.priority) best = static_cast<std::int32_t>(s);
      continue;
    }
    if (best == active_) continue;  // not displaced by its equal
    // Displaced kernels go on first; then compute and side streams alternate, compute first.
    if (candidate.begun != holder.begun) {
      if (candidate.begun) best = static_cast<std::int32_t>(s);
    } else if (best == 0) {
      if (last_served_ == 0) best = static_cast<std::int32_t>(s);
    } else if (candidate.begin_ns < holder.begin_ns) {
      best = static_cast<std::int32_t>(s);
    }
  }
  active_ = best;
  if (active_ >= 0) {
    StreamState& holder = streams_[static_cast<std::size_t>(active_)];
    if (!holder.begun) holder.begin_ns = now_ns_;
    holder.begun = true;
  }
}

void Engine::update_regimes() {
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    StreamState& stream = streams_[s];
    if (stream.running < 0) continue;
    const bool contended = stream.cls == Class::kCollective ? active_ >= 0 : resident_ > 0;
    if (contended == stream.contended) continue;
    stream.remaining_ns = stream.contended
                              ? convert(stream.remaining_ns, stream.contended_ns, stream.alone_ns)
                              : convert(stream.remaining_ns, stream.alone_ns, stream.contended_ns);
    stream.contended = contended;
  }
}

void Engine::account(Nanoseconds dt) {
  if (resident_ > 0) acc_.communication_ns += dt;
  if (active_ >= 0) {
    const Phase phase = streams_[static_cast<std::size_t>(active_)].phase;
    (phase == Phase::kOptimizer ? acc_.time.optimizer_ns : acc_.time.compute_ns) += dt;
    acc_.phase_ns[static_cast<std::size_t>(phase)] += dt;
  } else if (resident_ > 0) {
    acc_.time.exposed_ns += dt;
  } else {
    acc_.time.host_ns += dt;
  }
}

bool Engine::progresses(std::size_t stream) const {
  return static_cast<std::int32_t>(stream) == active_ || streams_[stream].cls == Class::kCollective;
}

/// Advances the clock to the next completion or arrival. Returns false when the step is over.
bool Engine::step_time() {
  Nanoseconds dt = kNever;
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    const StreamState& stream = streams_[s];
    if (stream.running >= 0) {
      if (progresses(s)) dt = std::min(dt, stream.remaining_ns);
    } else if (!stream.empty()) {
      const Instance& head = instances_[static_cast<std::size_t>(stream.queue[stream.head])];
      if (head.enqueue_ns > now_ns_ && ready(head)) dt = std::min(dt, head.enqueue_ns - now_ns_);
    }
  }
  if (dt == kNever) {
    if (issue_next()) return true;
    SHARDWRIGHT_CHECK(cursor_.at_end, "the schedule waits for an event that nobody records");
    return false;
  }
  account(dt);
  now_ns_ += dt;
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    StreamState& stream = streams_[s];
    if (stream.running >= 0 && progresses(s)) stream.remaining_ns -= dt;
  }
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    StreamState& stream = streams_[s];
    if (stream.running >= 0 && stream.remaining_ns <= 0) {
      stream.begun = false;
      complete(s);
    }
  }
  return true;
}

StepTime Engine::run(const Schedule& schedule, const std::vector<OpCost>& costs,
                     const EngineOptions& options) {
  options_ = options;
  if (options_.timeline != nullptr || options_.variation != nullptr) options_.skip_repeats = false;
  prepare(schedule, costs);
  pending_boundary_ = -1;
  do {
    if (pending_boundary_ >= 0) {
      const std::int32_t seq = pending_boundary_;
      pending_boundary_ = -1;
      at_block_boundary(seq);
      at_section_boundary(seq);
    }
    issue_as_needed();
    while (starts()) issue_as_needed();
    choose_kernel();
    update_regimes();
  } while (step_time());
  StepTime result;
  result.step_ns = std::max(now_ns_, host_clock_ns_);
  result.time = acc_.time;
  result.time.host_ns += result.step_ns - now_ns_;
  result.communication_ns = acc_.communication_ns;
  result.phase_ns = acc_.phase_ns;
  result.simulated_ops = simulated_;
  return result;
}

}  // namespace shardwright::sim
