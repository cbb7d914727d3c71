// SPDX-License-Identifier: Apache-2.0
// What is certain to happen between two points of a step, whatever the engine decides.
//
// A step is cut where forward ends, where backward ends, and so on, at the completion of an
// operation of the compute stream. An operation of another stream lies between two cuts when it
// depends on the first (events and stream order, transitively) and the second depends on it. The
// dependencies are read off the schedule once; they do not change with checkpointing, which only
// adds operations to the compute stream. closed_form.h turns stretches into lower bounds.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/core/schedule.h"
#include "sim/engine/engine.h"

namespace shardwright::sim {

/// Blocks whose operations of the compute stream run in a stretch, each `times` times.
struct BlockRange {
  std::uint32_t first = 0, count = 0;
  std::int64_t times = 1;
};

/// A kind of kernel outside the compute stream.
struct SideKernel {
  Nanoseconds alone_ns = 0, contended_ns = 0;
  std::int64_t count = 0;
};

/// Times are those of operations that run alone. What a unit's operations wait for at once
/// (Op::in_line) counts as one of the compute stream's.
struct Stretch {
  std::vector<BlockRange> blocks;
  std::int64_t times = 1;  // how many stretches of the step are like this one
  /// Of the stream with most collective time inside.
  Nanoseconds collective_ns = 0;
  Nanoseconds kernels_beside_ns = 0;  // kernels of that stream: they do not overlap with it
  std::vector<SideKernel> side;       // kernels of the other streams
  Nanoseconds busiest_ns = 0;         // all operations of the busiest stream other than compute
  Nanoseconds lead_ns = 0;            // before the first compute kernel can start
};

struct StepStretches {
  std::vector<Stretch> phases;  // one after another, from the start of the step to its end
  Stretch last_two;             // the last two of them as one: backward and optimizer
  Stretch whole;                // the step as one
};

/// Keeps its buffers between schedules.
class StretchFinder {
 public:
  StretchFinder();
  ~StretchFinder();
  StepStretches find(const Schedule& schedule, const std::vector<OpCost>& costs);
  struct Buffers;

 private:
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace shardwright::sim
