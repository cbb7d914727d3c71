// SPDX-License-Identifier: Apache-2.0
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
// contention; one with a processor for each stream has none either.
//
// Layers repeat: when the state at the end of a repetition equals that of an earlier one, relative
// to the clock, the repetitions in between are skipped. All state is integer and relative, so the
// result is the one of the full simulation to the nanosecond (tests/sim/engine_test.cc). It leaves
// out other ranks, except in straggler mode (sim/engine/stragglers.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "sim/core/cluster.h"
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
  /// Streams have a processor each: what runs in one neither displaces nor slows another.
  bool independent_streams = false;
  /// Among equal priorities kernels of side streams go before those of the compute stream.
  bool side_streams_first = false;
  /// By OpId, what allocating costs the host before it issues the operation. Above 0: it waits
  /// until the device is idle first (an allocator that empties its cache); below 0: it does not.
  /// Switches skipping off.
  const std::vector<Nanoseconds>* allocation_ns = nullptr;
};

/// How streams share that device.
EngineOptions engine_options(const Gpu& gpu);

struct StepTime {
  Nanoseconds step_ns = 0;
  TimeBreakdown time;
  Nanoseconds communication_ns = 0;  // some collective is resident
  /// Of the exposed time, by the group of what runs; of several the one whose stream came last.
  std::array<Nanoseconds, kCommGroups> exposed_ns{};
  std::array<Nanoseconds, 7>
      phase_ns{};  // by Phase: time in which a compute-stream kernel of the phase runs
  std::int64_t simulated_ops = 0;
};

/// Reusable: keeps its buffers between runs. Not thread-safe.
class Engine {
 public:
  Engine();
  ~Engine();

  StepTime run(const Schedule& schedule, const std::vector<OpCost>& costs,
               const EngineOptions& options = {});

  /// Completion time of every operation of the last run that recorded a timeline, by OpId; for the
  /// allocator.
  const std::vector<Nanoseconds>& completion_ns() const;
  const std::vector<Nanoseconds>& issue_ns() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardwright::sim
