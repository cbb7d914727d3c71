// SPDX-License-Identifier: Apache-2.0
// The least time of a step, without its pipeline's walk.
//
// What the recurrence (sim/pipeline) adds up is known before it runs: a stage computes all of its
// passes one after another, starts no sooner than the first micro-batch has come through the first
// chunks of the stages before it, and its last backward has yet to go back through them. So for
// every stage s
//
//   end >= sum_{q < s} F_q + m sum_c (F_sc + B_sc) + sum_{q < s} B_q
//
// with F_q and B_q the passes of the first chunk of stage q. With equal stages and no transfers
// that is the closed form of 1F1B and of interleaving, so there the bound is off by transfers and
// by waits of uneven stages only. Where weight gradients are passes of their own, they may be the
// last that a stage does: either they count or the way back through the stages before it. Schedules
// in the shape of a V have no such order; their bound is the busiest stage. What follows the passes
// (reductions, the update) counts nothing; passes count what their units take at least
// (unit_bounds.h).
#include <algorithm>

#include "sim/core/base/seconds.h"
#include "sim/pipeline/pipeline_step.h"
#include "sim/program/program_writer.h"

namespace shardwright::sim {
namespace {

/// The inequality above; stages are added one by one.
class PipelineBound {
 public:
  explicit PipelineBound(const PipelineShape& shape)
      : ordered_(shape.info().order == ChunkOrder::kLoop),
        splits_(shape.info().splits_backward),
        passes_(shape.passes()) {}

  /// `deferred_ns`: of the step, what the chunk computes after its passes.
  void add(const UnitBounds::Chunk& chunk, Nanoseconds deferred_ns) {
    const Nanoseconds forward = chunk.forward.least_ns(), backward = chunk.backward.least_ns();
    const Nanoseconds delayed = std::min(backward, chunk.backward.delayed_ns);
    if (is_first_) {
      first_forward_ = forward;
      first_backward_ = splits_ ? backward - delayed : backward;
      is_first_ = false;
    }
    busy_ += forward + backward;
    delayed_ += delayed;
    deferred_ += deferred_ns;
  }

  void end_stage() {
    const Nanoseconds arrives = ordered_ ? forward_before_ : 0;
    const Nanoseconds returns =
        ordered_ ? std::max<Nanoseconds>(0, backward_before_ - deferred_) : 0;
    if (splits_) {
      least_ = std::max(
          {least_, arrives + passes_ * busy_, arrives + passes_ * (busy_ - delayed_) + returns});
    } else {
      least_ = std::max(least_, arrives + passes_ * busy_ + returns);
    }
    forward_before_ += first_forward_;
    backward_before_ += first_backward_;
    busy_ = delayed_ = deferred_ = 0;
    is_first_ = true;
  }

  Nanoseconds least_ns() const { return least_; }

 private:
  bool ordered_, splits_, is_first_ = true;
  Nanoseconds passes_, least_ = 0, busy_ = 0, delayed_ = 0, deferred_ = 0;
  Nanoseconds first_forward_ = 0, first_backward_ = 0, forward_before_ = 0, backward_before_ = 0;
};

}  // namespace

double PipelineSimulator::least_s(const Plan& plan) {
  const PipelineShape shape = pipeline_shape(plan);
  const std::vector<ChunkContent> parts = partition_layers(model_, plan, profile_.stack);
  const double host_step_s = profile_.stack.host.step_s;
  const UnitBounds::Units units = bounds_.units(plan);
  if (shape.stages == 1) {
    // The host runs ahead through all of the step.
    UnitBounds::Chunk chunk = bounds_.of(plan, units, parts.front());
    chunk.forward.add(chunk.backward);
    return seconds_of(shape.micro_batches * chunk.forward.least_ns()) + host_step_s;
  }
  const std::int64_t most = profile_.stack.parallel.userbuffers.deferred_head_gradients;
  PipelineBound bound(shape);
  for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      const UnitBounds::Chunk chunk = bounds_.of(plan, units, of_chunk(parts, shape, {stage, c}));
      bound.add(chunk, std::min(most, plan.grad_accum) * chunk.head_delayed_ns);
    }
    bound.end_stage();
  }
  return seconds_of(bound.least_ns()) + host_step_s;
}

}  // namespace shardwright::sim
