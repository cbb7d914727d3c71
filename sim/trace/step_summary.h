// SPDX-License-Identifier: Apache-2.0
// A trace boiled down: for every operation what a step spends in it, over all ranks and steps that
// the trace holds.
//
// A lane is one rank in one step. In each lane the step's time is shared out without rest: a moment
// belongs to the kernel that runs, else to the collective that is resident, else to no operation
// (the device waits for the host). So an operation has a duration and an exposed time, which is its
// part of the step; hidden collectives have none. Values are medians over lanes, which single
// disturbed steps do not move. The least duration of a collective over the ranks of a step is its
// transfer; what ranks spend beyond it they wait for each other.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/trace/step_trace.h"

namespace shardwright::sim {

struct OperationTimes {
  TracedOperation operation;
  double duration_s = 0;  // on one rank
  double exposed_s = 0;
  double transfer_s = 0;  // collectives: the duration without waiting
  double contended = 0;   // share of the duration beside the other sort of operation
};

/// A rank whose kernels take longer than those of most, or a step that took longer than most.
struct Slow {
  std::int64_t number = 0;  // of the rank or step
  double by = 0;            // fraction beyond the median
};

struct StepSummary {
  std::map<OpId, OperationTimes> operations;
  std::map<std::string, double> alone_s;  // kernels that ran alone, by name without layer: median
  double step_s = 0;                      // median over steps of the slowest rank's
  double idle_s = 0;                      // no operation runs: median over lanes
  std::int64_t ranks = 0;
  std::int64_t steps = 0;
  std::vector<Slow> slow_ranks, slow_steps;

  /// Of a step, what the medians of its parts do not add up to.
  double scatter_s() const;
};

/// Throws Error when no kernel in the trace has an operation.
StepSummary summary_of(const StepTrace& trace);

/// Contended share below which a kernel ran alone.
inline constexpr double kAlone = 0.02;

/// "layer17.forward.norm" without the layer's number: "layer.forward.norm".
std::string without_layer(const std::string& name);

}  // namespace shardwright::sim
