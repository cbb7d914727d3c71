// SPDX-License-Identifier: Apache-2.0
// How long the passes of a pipeline's chunk last: its schedule is written once and each kind of
// pass timed by the engine.
//
// In the steady state a pass lasts what one more of them adds to several in a row, so that the host
// has run ahead or is what limits. The first forward and the last backward pass are timed beside
// what the strategy puts around them (gathers of parameters, reductions of gradients): what they
// take more than others is theirs to show. sim/pipeline/pipeline_step.h puts passes together.
#pragma once

#include <array>
#include <vector>

#include "sim/accounting.h"
#include "sim/core/schedule.h"
#include "sim/cost/cost.h"
#include "sim/engine/engine.h"
#include "sim/engine/host_regime.h"
#include "sim/strategies/lower.h"

namespace shardwright::sim {

/// A pass, or what a part of the step takes more than passes do.
struct PassTime {
  Nanoseconds length_ns = 0;
  TimeBreakdown time;
  std::array<Nanoseconds, kCommGroups> exposed_ns{};
};
void add(PassTime& to, const PassTime& more, double factor = 1);

struct ChunkPasses {
  PassTime forward, backward;
  Nanoseconds issued_ns = 0;        // by the host, for both
  KernelTimes kernels;              // of both
  Nanoseconds delayed_ns = 0;       // of backward: weight gradients, which a schedule may put off
  Nanoseconds head_delayed_ns = 0;  // of them, the head's
  PassTime first_forward;           // what it takes more where its input is there at once
  PassTime reduction;               // what the last backward takes more
  Nanoseconds gathering_ns = 0;     // how long the first forward gathers parameters
  Nanoseconds reducing_ns = 0;      // how long the last backward reduces gradients
  double slowed_share = 0;          // of the rate of backward's kernels, beside a reduction
  Bytes tied_bytes = 0;         // of a tied table's gradients, that the stage sends and receives
  Nanoseconds tied_add_ns = 0;  // adds what it received
  PassTime update;
  Nanoseconds update_issued_ns = 0;
  KernelTimes update_kernels;
  double flops = 0;
  CommunicationByGroup sent{};
};

/// An operation of a pass, as it runs in the steady state.
struct PassOperation {
  OpInstance at;                         // its id counts within the pass
  Nanoseconds begin_ns = 0, end_ns = 0;  // from the pass's begin; equal: it takes no time
};

/// A chunk's schedule with what its operations cost.
struct TimedChunk {
  Schedule schedule;  // written by lower_chunk()
  std::vector<OpCost> costs;
  StepTime two_forward;
  ChunkPasses passes;
};

/// Not thread-safe.
class ChunkTimer {
 public:
  explicit ChunkTimer(const profiles::Profile& profile) : costs_(profile) {}

  /// Fills everything but the schedule, for passes with or apart from their weight gradients.
  void time(TimedChunk& chunk, bool splits_backward);
  /// What the first forward pass takes more than others where its input arrives `spare_ns` after
  /// the step has begun.
  PassTime first_forward(TimedChunk& chunk, Nanoseconds spare_ns);
  /// The operations of one pass among others, in host order, or of one part of backward.
  std::vector<PassOperation> pass_operations(TimedChunk& chunk, ChunkSection pass,
                                             PassPart part = PassPart::kAll);

  /// In the places of the chunk that was timed last.
  OpCosts& operations() { return costs_.operations(); }

 private:
  struct Part {
    ChunkSection section;
    std::int32_t repeats;
  };
  template <typename Run>
  void run_part(TimedChunk& chunk, PassPart part, const Run& run);
  PassTime part_of_backward(TimedChunk& chunk, PassPart part);
  StepTime run(TimedChunk& chunk, std::initializer_list<Part> parts, Timeline* timeline = nullptr,
               std::vector<OpInstance>* instances = nullptr);

  CostModel costs_;
  Engine engine_;
  std::vector<Section> written_;  // of the schedule that runs
};

}  // namespace shardwright::sim
