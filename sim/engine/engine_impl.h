// SPDX-License-Identifier: Apache-2.0
// The state of one run of the engine, and how it moves.
//
// The loop (engine.cc, run) has four movements. The host issues (engine_issue.cc): it walks the
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
// Repeats (engine_repeats.cc): a state is written down relative to the clock and to the instance
// that has just completed. Two equal states at the end of two repetitions of a block or a section
// mean that everything in between happens again; the clock, the host, the accumulators and every
// instance that may still be waited for are moved on by as many periods as fit.
//
// Everything lives in flat vectors that keep their capacity between runs, operations are copied
// into HotOps of the few fields the loop reads, and sets of streams are bits, so that the loop
// meets only streams that run or wait: tens of thousands of steps a second depend on it.
#pragma once

#include <bit>
#include <limits>

#include "sim/engine/engine.h"

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

  // engine_prepare.cc: from a schedule to tables and an empty machine.
  void prepare(const Schedule& schedule, const std::vector<OpCost>& costs);
  void copy_operations(const std::vector<OpCost>& costs);
  Class class_of(const Op& op, Nanoseconds alone_ns) const;
  void prepare_events();
  void prepare_streams();
  void prepare_blocks();
  void note_host_wait(const HotOp& hot);
  void prepare_sections();
  void clear_state();

  // engine_issue.cc: the host.
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

  // engine_repeats.cc
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

}  // namespace shardwright::sim
