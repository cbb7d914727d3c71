// SPDX-License-Identifier: Apache-2.0
#include "sim/engine/engine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "sim/core/base/check.h"
#include "sim/engine/engine_impl.h"

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

bool Engine::Impl::ready(const Instance& instance) const {
  for (std::int32_t dep : instance.deps) {
    if (dep >= 0 && instances_[static_cast<std::size_t>(dep)].done_ns == kPending) return false;
  }
  return true;
}

/// Whether a collective finds SMs: unless its stream has priority it waits for the kernel that runs
/// when it is first ready.
bool Engine::Impl::admits(StreamState& stream) {
  if (options_.independent_streams) return true;
  if (stream.admitted_after < 0 && active_ >= 0 &&
      stream.collective_priority >= this->stream(active_).priority) {
    stream.admitted_after = this->stream(active_).running;
  }
  if (stream.admitted_after >= 0 && instance(stream.admitted_after).done_ns == kPending)
    return false;
  stream.admitted_after = -1;
  return true;
}

bool Engine::Impl::starts() {
  bool progressed = false;
  for_each_stream(queued_ & ~running_, [&](std::size_t s) {
    StreamState& stream = streams_[s];
    const std::int32_t seq = stream.queue[stream.head];
    const Instance& instance = instances_[static_cast<std::size_t>(seq)];
    if (instance.enqueue_ns > now_ns_ || !ready(instance)) return;
    const HotOp& hot = hot_[instance.op];
    if (hot.cls == Class::kCollective && !admits(stream)) return;
    start(s, seq, hot);
    progressed = true;
    if (hot.cls == Class::kNone) complete(s);
  });
  return progressed;
}

/// The operation at the head of the stream's queue.
void Engine::Impl::start(std::size_t s, std::int32_t seq, const HotOp& hot) {
  StreamState& stream = streams_[s];
  const Instance& started = instance(seq);
  running_ |= bit(s);
  if (hot.cls == Class::kKernel) kernels_ |= bit(s);
  if (hot.cls == Class::kCollective) collectives_ |= bit(s);
  if (started.enqueue_ns == now_ns_ && now_ns_ > 0) host_bound_ = true;
  if (++stream.head == stream.queue.size()) {
    stream.queue.clear();
    stream.head = 0;
    queued_ &= ~bit(s);
  }
  stream.running = seq;
  stream.cls = hot.cls;
  stream.phase = hot.phase;
  stream.group = hot.group;
  stream.alone_ns = stream.remaining_ns = hot.alone_ns;
  stream.contended_ns = hot.contended_ns;
  stream.contended = false;
  stream.begin_ns = now_ns_;
  if (options_.variation != nullptr) vary(stream, started);
}

/// A collective is resident from when its own rank joins, and moves once the last one has joined.
void Engine::Impl::vary(StreamState& stream, const Instance& instance) {
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

void Engine::Impl::complete(std::size_t s) {
  StreamState& stream = streams_[s];
  Instance& instance = instances_[static_cast<std::size_t>(stream.running)];
  instance.done_ns = now_ns_;
  last_done_ns_ = now_ns_;
  if (active_ == static_cast<std::int32_t>(s)) active_ = -1;
  if (stream.cls == Class::kKernel) last_served_ = static_cast<std::int32_t>(s);
  stream.running = -1;
  running_ &= ~bit(s);
  kernels_ &= ~bit(s);
  collectives_ &= ~bit(s);
  if (options_.timeline != nullptr) {
    completion_ns[static_cast<std::size_t>(instance.id)] = now_ns_;
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

void Engine::Impl::choose_kernel() {
  if (options_.independent_streams) {  // for the account alone: the compute stream's is the first
    active_ = kernels_ == 0 ? -1 : std::countr_zero(kernels_);
    return;
  }
  std::int32_t best = active_;
  for_each_stream(kernels_, [&](std::size_t s) {
    if (static_cast<std::int32_t>(s) == active_) return;
    if (best < 0) {
      best = static_cast<std::int32_t>(s);
      return;
    }
    const StreamState& candidate = streams_[s];
    const StreamState& holder = streams_[static_cast<std::size_t>(best)];
    if (candidate.priority != holder.priority) {
      if (candidate.priority < holder.priority) best = static_cast<std::int32_t>(s);
      return;
    }
    if (best == active_) return;  // not displaced by its equal
    // Displaced kernels go on first; then compute and side streams alternate, compute first unless
    // it is asked otherwise.
    if (candidate.begun != holder.begun) {
      if (candidate.begun) best = static_cast<std::int32_t>(s);
    } else if (best == 0) {
      if (last_served_ == 0 || options_.side_streams_first) best = static_cast<std::int32_t>(s);
    } else if (candidate.begin_ns < holder.begin_ns) {
      best = static_cast<std::int32_t>(s);
    }
  });
  active_ = best;
  if (active_ >= 0) {
    StreamState& holder = streams_[static_cast<std::size_t>(active_)];
    if (!holder.begun) holder.begin_ns = now_ns_;
    holder.begun = true;
  }
}

void Engine::Impl::update_regimes() {
  for_each_stream(running_, [&](std::size_t s) {
    StreamState& stream = streams_[s];
    const bool contended = stream.cls == Class::kCollective ? active_ >= 0 : collectives_ != 0;
    if (contended == stream.contended) return;
    stream.remaining_ns = stream.contended
                              ? convert(stream.remaining_ns, stream.contended_ns, stream.alone_ns)
                              : convert(stream.remaining_ns, stream.alone_ns, stream.contended_ns);
    stream.contended = contended;
  });
}

void Engine::Impl::account(Nanoseconds dt) {
  if (collectives_ != 0) acc_.communication_ns += dt;
  if (active_ >= 0) {
    const Phase phase = streams_[static_cast<std::size_t>(active_)].phase;
    (phase == Phase::kOptimizer ? acc_.time.optimizer_ns : acc_.time.compute_ns) += dt;
    acc_.phase_ns[static_cast<std::size_t>(phase)] += dt;
  } else if (collectives_ != 0) {
    acc_.time.exposed_ns += dt;
    const auto last = static_cast<std::size_t>(std::bit_width(collectives_)) - 1;
    acc_.exposed_ns[static_cast<std::size_t>(streams_[last].group)] += dt;
  } else {
    acc_.time.host_ns += dt;
  }
}

Engine::Impl::StreamSet Engine::Impl::progressing() const {
  if (options_.independent_streams) return running_;
  const StreamSet active = active_ >= 0 ? bit(static_cast<std::size_t>(active_)) : 0;
  return (running_ & ~kernels_) | active;
}

/// Advances the clock to the next completion or arrival. Returns false when the step is over.
bool Engine::Impl::step_time() {
  Nanoseconds dt = kNever;
  const StreamSet moving = progressing();
  for_each_stream(moving, [&](std::size_t s) { dt = std::min(dt, streams_[s].remaining_ns); });
  for_each_stream(queued_ & ~running_, [&](std::size_t s) {
    const Instance& head = instance(streams_[s].queue[streams_[s].head]);
    if (head.enqueue_ns > now_ns_ && ready(head)) dt = std::min(dt, head.enqueue_ns - now_ns_);
  });
  if (dt == kNever) {
    if (issue_next()) return true;
    SHARDWRIGHT_CHECK(cursor_.at_end, "the schedule waits for an event that nobody records");
    return false;
  }
  account(dt);
  now_ns_ += dt;
  for_each_stream(moving, [&](std::size_t s) {
    streams_[s].remaining_ns -= dt;
    if (streams_[s].remaining_ns > 0) return;
    streams_[s].begun = false;
    complete(s);
  });
  return true;
}

StepTime Engine::Impl::run(const Schedule& schedule, const std::vector<OpCost>& costs,
                           const EngineOptions& options) {
  options_ = options;
  if (options_.timeline != nullptr || options_.variation != nullptr ||
      options_.allocation_ns != nullptr) {
    options_.skip_repeats = false;
  }
  prepare(schedule, costs);
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
  result.exposed_ns = acc_.exposed_ns;
  result.phase_ns = acc_.phase_ns;
  result.simulated_ops = simulated_;
  return result;
}

EngineOptions engine_options(const Gpu& gpu) {
  EngineOptions options;
  options.in_order = !gpu.overlaps_streams;
  options.independent_streams = gpu.independent_streams;
  return options;
}

Engine::Engine() : impl_(std::make_unique<Impl>()) {}
Engine::~Engine() = default;

StepTime Engine::run(const Schedule& schedule, const std::vector<OpCost>& costs,
                     const EngineOptions& options) {
  return impl_->run(schedule, costs, options);
}
const std::vector<Nanoseconds>& Engine::completion_ns() const {
  return impl_->completion_ns;
}
const std::vector<Nanoseconds>& Engine::issue_ns() const {
  return impl_->issue_ns;
}

}  // namespace shardwright::sim
