// SPDX-License-Identifier: Apache-2.0
// The state of one run of the engine, and how it moves.
//
// The loop (run) has four movements. The host issues: it walks the
// schedule with a cursor, and each operation for the device becomes an Instance in its stream's
// queue, with the instances that it depends on looked up at that moment, as CUDA looks up events.
// Streams start what is at the head of their queue, arrived and ready. One of the running kernels
// is chosen to hold the SMs. The clock then goes straight to the next completion or arrival;
// between two such moments nothing changes, so work in progress is one subtraction per stream.
//
// The host is simulated no further than the streams need: a block of the schedule is issued once a
// stream that it or the next block uses has run dry. What is issued later cannot matter before.
// That keeps the queues short, and short queues are what makes the state small enough to compare.
//
// Repeats: a state is written down relative to the clock and to the instance
// that has just completed. Two equal states at the end of two repetitions of a block or a section
// mean that everything in between happens again; the clock, the host, the accumulators and every
// instance that may still be waited for are moved on by as many periods as fit.
//
// Everything lives in flat vectors that keep their capacity between runs, operations are copied
// into HotOps of the few fields the loop reads, and sets of streams are bits, so that the loop
// meets only streams that run or wait: tens of thousands of steps a second depend on it.
#include "sim/engine/engine.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "sim/core/base/check.h"

namespace shardwright::sim {

class Engine::Impl {
 public:
  StepTime run(const Schedule& schedule, const std::vector<OpCost>& costs,
               const EngineOptions& options);

  std::vector<Nanoseconds> completion_ns, issue_ns;  // by OpId, of a run with a timeline

 private:
  /// A transfer goes beside kernels and takes nothing from them.
  enum class Class : std::uint8_t { kNone, kKernel, kCollective, kHost, kTransfer };
  struct HotOp {
    Nanoseconds alone_ns, contended_ns, host_ns;
    EventRef waits[kMaxWaits];
    EventRef record;
    std::uint8_t stream, wait_count;
    Class cls;
    Phase phase;
    CommGroup group;  // of collectives
    bool host_waits;
  };
  /// An operation that was issued.
  struct Instance {
    std::uint32_t op;
    std::uint32_t block;
    std::int32_t rep;
    std::int32_t deps[kMaxWaits];
    Nanoseconds enqueue_ns;
    Nanoseconds done_ns;  // kPending until complete
    OpId id;
  };
  struct StreamState {
    std::vector<std::int32_t> queue;
    std::size_t head = 0;
    std::int32_t running = -1;
    Class cls = Class::kNone;  // of the running operation, as the three below
    Phase phase = Phase::kPrepare;
    CommGroup group = CommGroup::kShard;
    Nanoseconds alone_ns = 0, contended_ns = 0;
    Nanoseconds remaining_ns = 0;  // in units of the current regime
    Nanoseconds begin_ns = 0;
    bool contended = false;            // regime in which remaining_ns is expressed
    bool begun = false;                // its kernel has held the SMs
    std::int32_t admitted_after = -1;  // a collective waits for this kernel to retire
    int priority = 0, collective_priority = 0;
    bool empty() const { return head == queue.size(); }
  };
  /// Streams, a bit each.
  using StreamSet = std::uint32_t;
  static StreamSet bit(std::size_t stream) { return StreamSet{1} << stream; }
  /// Calls f(stream) for each of them, in ascending order.
  template <typename F>
  static void for_each_stream(StreamSet set, const F& f) {
    for (; set != 0; set &= set - 1) f(static_cast<std::size_t>(std::countr_zero(set)));
  }
  struct Cursor {  // next operation the host issues
    std::uint32_t section = 0, block = 0, op = 0;
    std::int32_t micro = 0, rep = 0;
    OpId id = 0;
    bool at_end = false;
  };
  struct Accumulators {
    TimeBreakdown time;
    Nanoseconds communication_ns = 0;
    std::array<Nanoseconds, 7> phase_ns{};
    std::array<Nanoseconds, kCommGroups> exposed_ns{};
  };
  struct Snapshot {
    std::vector<std::int64_t> state;
    Nanoseconds now_ns, host_ns;
    Accumulators accumulated;
    std::int32_t rep;
    bool host_bound;
  };

  static constexpr Nanoseconds kPending = -1;
  static constexpr std::int32_t kLookAhead = 4;  // units that the host may be ahead of compute
  static constexpr std::uint32_t kNoIndex = std::numeric_limits<std::uint32_t>::max();

  // From a schedule to tables and an empty machine.
  void prepare(const Schedule& schedule, const std::vector<OpCost>& costs);
  void copy_operations(const std::vector<OpCost>& costs);
  Class class_of(const Op& op, Nanoseconds alone_ns) const;
  void prepare_events();
  void prepare_streams();
  void prepare_blocks();
  void note_host_wait(const HotOp& hot);
  void prepare_sections();
  void clear_state();

  // The host.
  bool issue_next();
  void issue_as_needed();
  bool stop_waiting();
  bool stop_draining();
  bool drains_before_issue();
  void note_issue();
  void issue_to_host(const HotOp& hot, std::int32_t unit);
  void issue_to_stream(const HotOp& hot, std::uint32_t index, std::int32_t unit);
  void complete_host_operation();
  void advance_cursor();
  std::int32_t* event_slot(std::uint8_t name, std::int32_t unit);

  // engine.cc: the device.
  bool starts();
  bool admits(StreamState& stream);
  void vary(StreamState& stream, const Instance& instance);
  bool ready(const Instance& instance) const;
  void complete(std::size_t stream);
  /// Those whose operation makes progress: one kernel at a time, all others always.
  StreamSet progressing() const;
  void start(std::size_t stream, std::int32_t seq, const HotOp& hot);
  void choose_kernel();
  void update_regimes();
  bool step_time();
  void account(Nanoseconds dt);

  void at_block_boundary(std::int32_t seq);
  void at_section_boundary(std::int32_t seq);
  template <typename Inside>
  bool only_inside(const Inside& inside) const;
  void take_snapshot(Snapshot& snapshot, std::int32_t base_seq, std::int32_t rep);
  bool same(const Snapshot& a, const Snapshot& b) const;
  void skip(std::int32_t periods, std::int32_t reps, const Snapshot& now, const Snapshot& before,
            std::int32_t unit, std::int32_t unit_step);

  const Instance& instance(std::int32_t seq) const {
    return instances_[static_cast<std::size_t>(seq)];
  }
  StreamState& stream(std::int32_t s) { return streams_[static_cast<std::size_t>(s)]; }

  // What is run, set by prepare.
  const Schedule* schedule_ = nullptr;
  EngineOptions options_;
  std::vector<HotOp> hot_;
  std::vector<StreamSet> stream_mask_;      // streams used by each block and the next
  std::vector<std::uint32_t> boundary_op_;  // last compute operation of each block
  std::vector<std::uint32_t> section_boundary_block_;
  std::vector<EventRef> host_waits_;  // events that the host blocks on
  std::int32_t units_ = 0;
  std::int32_t window_ = 0;  // units around the current one whose events may still matter

  // The host.
  Cursor cursor_;
  Nanoseconds host_clock_ns_ = 0;
  std::int32_t blocked_on_ = -1;
  bool draining_ = false;
  bool allocating_ = false;  // draining for the allocator
  OpId drained_for_ = -1;    // the operation before which it last did
  bool host_bound_ = false;  // the device has waited for it since the last snapshot

  // The device.
  std::vector<Instance> instances_;
  std::vector<std::int32_t> events_;  // last instance that recorded (name, unit)
  std::vector<StreamState> streams_;
  StreamSet running_ = 0, kernels_ = 0, collectives_ = 0;  // streams that run any, ...
  StreamSet queued_ = 0;                                   // whose queue is not empty
  Nanoseconds now_ns_ = 0, last_done_ns_ = 0;
  std::int32_t active_ = -1;  // stream whose kernel holds the SMs
  std::int32_t last_served_ = -1;
  Accumulators acc_;
  std::int64_t simulated_ = 0;

  // Repeats.
  std::vector<Snapshot> block_snapshots_, section_snapshots_;
  std::size_t block_snapshot_count_ = 0, section_snapshot_count_ = 0;
  std::uint32_t snapshot_block_ = 0, snapshot_section_ = 0;
  std::int32_t pending_boundary_ = -1;
};

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

// The host: issues operations in order, runs ahead of the device, and blocks where the schedule
// says.

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

// From a schedule to the tables that a run reads, and a machine on which nothing has happened.

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

// How the engine skips repeated layers and micro-batches: at the last compute operation of each
// repetition it notes its whole state relative to the clock; two equal states mean that everything
// in between happens again, so the clock jumps.

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
