// SPDX-License-Identifier: Apache-2.0
// From lists of operations, in the order of the host, to a pass on two streams: what computes, and
// the unit's own collectives beside it, with the events on which they wait for each other.
//
// A collective that is not overlapped starts when compute has come so far and holds it up; one that
// is overlapped with what follows starts at the same point, and an operation that `joins` waits for
// it, at the latest the end of the list. What other micro-batches hide begins with the list.
#pragma once

#include <vector>

#include "sim/core/op.h"
#include "sim/core/parallel_software.h"
#include "sim/program/unit_program.h"

namespace shardwright::sim {

class ListPass {
 public:
  ListPass(const ParallelSoftware& software, CudaGraphs graphs)
      : software_(software), graphs_(graphs) {}

  /// Appends; several lists of one pass follow one another. `lifetimes` are by the list's indices.
  void append(const Ops& list, const std::vector<MemoryAction>& lifetimes = {});
  UnitPass take();

 private:
  Op& push(const Op& op);
  Op& mark(Phase phase);
  void push_collective(const Op& op);
  void push_compute(const Op& op);
  void wait_for_device(Phase phase, double wakeup_s);
  void join(Phase phase);
  /// The last operation that computes records what collectives and the host wait for.
  void record_computed(Phase phase);
  void wait(Op& op, UnitEvent event) const;

  const ParallelSoftware& software_;
  CudaGraphs graphs_;
  UnitPass pass_;
  std::size_t computed_ = kNone;  // index of the last operation that computes
  bool in_flight_ = false;        // a collective that nothing has waited for
  bool awaited_ = false;          // the next operation that computes waits for it
  UnitEvent last_ = UnitEvent::kArrivedToo;
  double host_s_ = 0;  // of the next operation
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
};

}  // namespace shardwright::sim
