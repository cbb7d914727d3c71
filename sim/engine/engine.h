// Discrete-event simulation of one rank's step: in-order streams, events, a host that issues in
// order.
//
// What it models: the host issues operations one after another and runs ahead of the device; it
// blocks only where the schedule says so. A stream runs its operations in order. Kernels take the
// whole GPU: a kernel of a stream of higher priority displaces the running one at once, kernels of
// equal priority wait for the running one and then alternate, compute first (the order met by the
// rank that arrives last at the next collective, and a collective starts when the last rank
// arrives). A collective needs SMs to start: unless its stream has priority it waits for the
// running kernel. While a collective is resident kernels run at their contended duration, and
// collectives at theirs while a kernel runs; work in progress is converted when that changes
// (piecewise rates). A device that runs operations as they are issued has one stream, and no
// contention.
//
// Layers repeat: when the state at the end of a repetition equals that of an earlier one, relative
// to the clock, the repetitions in between are skipped. All state is integer and relative, so the
// result is the one of the full simulation to the nanosecond (tests/sim/engine_test.cc). It leaves
// out other ranks, except in straggler mode (sim/engine/stragglers.h).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/core/schedule.h"
#include "sim/core/timeline.h"

namespace shardwright::sim {

/// What an operation of the schedule costs; same index as Schedule::ops.
struct OpCost {
  Nanoseconds alone_ns = 0;
  Nanoseconds contended_ns =
      0;  // kernels: while a collective is resident; collectives: while a kernel runs
  Nanoseconds host_ns = 0;  // time the host needs to issue it
};

/// Every nanosecond of a step is one of these.
struct TimeBreakdown {
  Nanoseconds compute_ns = 0;    // a kernel runs, outside the optimizer
  Nanoseconds exposed_ns = 0;    // only collectives run
  Nanoseconds host_ns = 0;       // the device waits for the host
  Nanoseconds optimizer_ns = 0;  // kernels of the optimizer phase
};

/// One rank among several whose kernels do not all take the same time (sim/engine/stragglers.h).
/// Vectors are indexed by OpId.
struct RankVariation {
  const std::vector<double>* kernel_factor = nullptr;    // on the duration of each kernel
  const std::vector<Nanoseconds>* release_ns = nullptr;  // when the last rank joins a collective
  std::vector<Nanoseconds>* arrival_ns = nullptr;        // out: when this rank joins it
};

struct EngineOptions {
  bool skip_repeats = true;
  Timeline* timeline = nullptr;              // filled with every span; switches skipping off
  const RankVariation* variation = nullptr;  // switches skipping off
  /// Streams do not run side by side: each operation runs when it is issued and the host waits for
  /// it.
  bool in_order = false;
};

struct StepTime {
  Nanoseconds step_ns = 0;
  TimeBreakdown time;
  Nanoseconds communication_ns = 0;  // some collective is resident
  std::array<Nanoseconds, 7>
      phase_ns{};  // by Phase: time in which a compute-stream kernel of the phase runs
  std::int64_t simulated_ops = 0;
};

/// Reusable: keeps its buffers between runs. Not thread-safe.
class Engine {
 public:
  StepTime run(const Schedule& schedule, const std::vector<OpCost>& costs,
               const EngineOptions& options = {});

  /// Completion time of every operation of the last run that recorded a timeline, by OpId; for the
  /// allocator.
  const std::vector<Nanoseconds>& completion_ns() const { return completion_ns_; }
  const std::vector<Nanoseconds>& issue_ns() const { return issue_ns_; }

 private:
  enum class Class : std::uint8_t { kNone, kKernel, kCollective, kHost };
  struct HotOp {
    Nanoseconds alone_ns, contended_ns, host_ns;
    EventRef waits[kMaxWaits];
    EventRef record;
    std::uint8_t stream, wait_count;
    Class cls;
    Phase phase;
    bool host_waits;
  };
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
    Nanoseconds alone_ns = 0, contended_ns = 0;
    Nanoseconds remaining_ns = 0;  // in units of the current regime
    Nanoseconds begin_ns = 0;
    bool contended = false;            // regime in which remaining_ns is expressed
    bool begun = false;                // its kernel has held the SMs
    std::int32_t admitted_after = -1;  // a collective waits for this kernel to retire
    int priority = 0, collective_priority = 0;
    bool empty() const { return head == queue.size(); }
    bool runs(Class wanted) const { return running >= 0 && cls == wanted; }
  };
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

  void prepare(const Schedule& schedule, const std::vector<OpCost>& costs);
  bool issue_next();
  void issue_as_needed();
  void advance_cursor();
  bool starts();
  void vary(StreamState& stream, const Instance& instance);
  bool ready(const Instance& instance) const;
  void complete(std::size_t stream);
  /// Whether its operation makes progress: collectives always, one kernel at a time.
  bool progresses(std::size_t stream) const;
  void choose_kernel();
  void update_regimes();
  bool step_time();
  void account(Nanoseconds dt);
  std::int32_t* event_slot(std::uint8_t name, std::int32_t unit);
  void at_block_boundary(std::int32_t seq);
  void at_section_boundary(std::int32_t seq);
  void take_snapshot(Snapshot& snapshot, std::int32_t base_seq, std::int32_t rep);
  bool same(const Snapshot& a, const Snapshot& b) const;
  void skip(std::int32_t periods, std::int32_t reps, const Snapshot& now, const Snapshot& before,
            std::int32_t unit, std::int32_t unit_step);

  const Schedule* schedule_ = nullptr;
  EngineOptions options_;
  std::vector<HotOp> hot_;
  std::vector<std::uint32_t> stream_mask_;  // streams used by each block
  std::vector<std::uint32_t> boundary_op_;  // last compute operation of each block
  std::vector<Instance> instances_;
  std::vector<std::int32_t> events_;  // last instance that recorded (name, unit)
  std::vector<StreamState> streams_;
  std::int32_t units_ = 0;
  std::int32_t window_ = 0;           // units around the current one whose events may still matter
  std::vector<EventRef> host_waits_;  // events that the host blocks on
  Cursor cursor_;
  Nanoseconds now_ns_ = 0, host_clock_ns_ = 0;
  std::int32_t blocked_on_ = -1;
  bool draining_ = false;
  std::int32_t active_ = -1;  // stream whose kernel holds the SMs
  std::int32_t last_served_ = -1;
  int resident_ = 0;  // collectives running
  bool host_bound_ = false;
  Nanoseconds last_done_ns_ = 0;
  Accumulators acc_;
  std::vector<Snapshot> block_snapshots_, section_snapshots_;
  std::size_t block_snapshot_count_ = 0, section_snapshot_count_ = 0;
  std::uint32_t snapshot_block_ = 0, snapshot_section_ = 0;
  std::vector<std::uint32_t> section_of_block_;
  std::vector<std::uint32_t> section_boundary_block_;
  std::int32_t pending_boundary_ = -1;
  std::int64_t simulated_ = 0;
  std::vector<Nanoseconds> completion_ns_, issue_ns_;
};

}  // namespace shardwright::sim
