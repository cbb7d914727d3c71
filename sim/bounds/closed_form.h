// SPDX-License-Identifier: Apache-2.0
// The least time of every plan of a family, whose plans differ only in how many layers are
// checkpointed.
//
// In any stretch of the step kernels run one at a time, and while a
// collective is resident they run slower. If collectives are resident for C and kernels need K
// alone, then at best the collectives lie beside those kernels that they slow least:
//
//   length >= K + C - P(C),   P(C) the most work that kernels can do in C while contended.
//
// Besides, a stretch is never shorter than its busiest stream, nor than what lies before its
// first compute kernel and, after it, all compute kernels and the collectives that they wait for at
// once, and a step never shorter than what the host needs to issue it. The bound of a step is the
// larger of the bound of the whole and the sum over its phases. Checkpointing adds kernels to the
// compute stream of forward and backward, so each term is a straight line in the number of
// checkpointed layers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/core/schedule.h"
#include "sim/engine/engine.h"

namespace shardwright::sim {

// What is certain to happen between two points of a step, whatever the engine decides.
//
// A step is cut where forward ends, where backward ends, and so on, at the completion of an
// operation of the compute stream. An operation of another stream lies between two cuts when it
// depends on the first (events and stream order, transitively) and the second depends on it. The
// dependencies are read off the schedule once; they do not change with checkpointing, which only
// adds operations to the compute stream.

/// Blocks whose operations of the compute stream run in a stretch, each `times` times.
struct BlockRange {
  std::uint32_t first = 0, count = 0;
  std::int64_t times = 1;
};

/// Kernels of one cost: how many there are without checkpoints, how many more per checkpointed
/// layer.
struct KernelCount {
  Nanoseconds alone_ns = 0, contended_ns = 0;
  std::int64_t count = 0, per_layer = 0;
};

/// Times are those of operations that run alone. What a unit's operations wait for at once
/// (Op::in_line) counts as one of the compute stream's.
struct Stretch {
  std::vector<BlockRange> blocks;
  std::int64_t times = 1;  // how many stretches of the step are like this one
  /// Of the stream with most collective time inside.
  Nanoseconds collective_ns = 0;
  Nanoseconds kernels_beside_ns = 0;  // kernels of that stream: they do not overlap with it
  std::vector<KernelCount> side;      // kernels of the other streams
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

class ClosedTime {
 public:
  /// `none` and `all` are the same plan without and with every layer checkpointed, lowered and
  /// costed; `stretches` are those of `none`.
  ClosedTime(const StepStretches& stretches, const Schedule& none,
             const std::vector<OpCost>& none_costs, const Schedule& all,
             const std::vector<OpCost>& all_costs);

  /// Never above the simulated time when `count` layers are checkpointed, whichever they are.
  Nanoseconds bound_ns(std::int64_t count) const;

 private:
  friend class ClosedTimeBuilder;
  /// a + b*k for k checkpointed layers.
  struct Line {
    double at_none = 0, per_layer = 0;
    double at(double k) const { return at_none + per_layer * k; }
    bool operator==(const Line&) const = default;
  };
  /// Kernels that a resident collective slows by the same factor.
  struct Group {
    double rate = 1;    // progress while contended
    Line contended_ns;  // time that they need contended
    bool operator==(const Group&) const = default;
  };
  struct Part {
    double times = 1;
    double collective_ns = 0, beside_ns = 0, busiest_ns = 0, lead_ns = 0;
    Line compute_ns;  // kernels of the compute stream, alone
    Line in_line_ns;  // collectives that these wait for at once
    double side_ns = 0;
    std::vector<Group> compute;           // by rate, fastest first
    std::vector<Group> compute_and_side;  // the same with side kernels; empty when there are none

    double bound_ns(double k) const;
    /// Equal but for `times`.
    bool like(const Part& other) const;
  };

  Line host_ns_;
  double operations_ = 0;
  std::vector<Part> phases_;
  std::vector<Part> separate_;  // the last two phases, and as one:
  Part last_two_, whole_;
};

}  // namespace shardwright::sim
