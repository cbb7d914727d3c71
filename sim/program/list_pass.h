// SPDX-License-Identifier: Apache-2.0
// From lists of operations, in the order of the host, to a pass on two streams: what computes, and
// the unit's own collectives beside it, with the events on which they wait for each other.
//
// A collective that is not overlapped starts when compute has come so far and holds it up; one that
// is overlapped with what follows starts at the same point, and an operation that `joins` waits for
// it, at the latest the end of the list. What other micro-batches hide begins with the list. What
// concerns a collective that is put off (Op::deferrable) is put off with it.
//
// Places of static memory go from one tensor to the next as the host issues operations, so what a
// collective beside compute touches dies where compute waits for that collective.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/core/plan.h"
#include "sim/core/schedule.h"
#include "sim/core/stack.h"
#include "sim/core/units.h"
#include "sim/program/unit_program.h"

namespace shardwright::sim {

class ListPass {
 public:
  ListPass(const ParallelSoftware& software, CudaGraphs graphs, MemoryManager memory)
      : software_(software), graphs_(graphs), memory_(memory) {}

  /// Appends; several lists of one pass follow one another. `lifetimes` are by the list's indices.
  void append(const Ops& list, const std::vector<MemoryAction>& lifetimes = {});
  UnitPass take();

 private:
  Op& push(const Op& op);
  Op& mark(Phase phase, bool deferrable = false);
  void push_collective(const Op& op);
  void push_compute(const Op& op);
  void wait_for_device(Phase phase, double wakeup_s);
  void join(Phase phase);
  /// The last operation that computes records what collectives and the host wait for.
  void record_computed(Phase phase);
  void wait(Op& op, UnitEvent event) const;
  void add(MemoryAction action);
  bool is_in_flight(const MemoryAction& action) const;

  const ParallelSoftware& software_;
  CudaGraphs graphs_;
  MemoryManager memory_;
  UnitPass pass_;
  std::size_t computed_ = kNone;           // index of the last operation that computes
  std::vector<std::size_t> in_flight_;     // collectives that nothing has waited for
  std::vector<MemoryAction> outstanding_;  // deaths that wait for them
  bool awaited_ = false;                   // the next operation that computes waits for them
  UnitEvent last_ = UnitEvent::kArrivedToo;
  double host_s_ = 0;  // of the next operation
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
};

/// What tensor ranks tell each other of a token's loss: maximum, sum of exponents and the target's
/// logit, in fp32.
inline constexpr std::int64_t kLossPartBytes = 12;

/// Of `tokens`, those whose logits exist at once.
inline std::int64_t loss_chunk_tokens(const Plan& plan, const Stack& stack, std::int64_t tokens) {
  if (plan.loss_chunks > 0) return std::max<std::int64_t>(1, ceil_div(tokens, plan.loss_chunks));
  const auto of_stack = static_cast<std::int64_t>(stack.loss_chunk_tokens);
  return of_stack > 0 ? std::min(tokens, of_stack) : tokens;
}

}  // namespace shardwright::sim
