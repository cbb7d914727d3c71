// SPDX-License-Identifier: Apache-2.0
#include "sim/bounds/pipeline_bound.h"

#include <algorithm>

#include "sim/core/base/seconds.h"
#include "sim/core/pipeline_shape.h"

namespace shardwright::sim {
namespace {

/// The inequality of pipeline_bound.h; stages are added one by one.
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

double pipeline_bound_s(const Model& model, const profiles::Profile& profile, const Plan& plan,
                        UnitBounds& passes) {
  const PipelineShape shape = pipeline_shape(plan);
  const std::vector<ChunkContent> parts = partition_layers(model, plan, profile.stack);
  const UnitBounds::Units units = passes.units(plan);
  const std::int64_t most = profile.stack.parallel.userbuffers.deferred_head_gradients;
  PipelineBound bound(shape);
  for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      const UnitBounds::Chunk chunk = passes.of(units, of_chunk(parts, shape, {stage, c}));
      bound.add(chunk, std::min(most, plan.grad_accum) * chunk.head_delayed_ns);
    }
    bound.end_stage();
  }
  return seconds_of(bound.least_ns()) + profile.stack.host.step_s;
}

}  // namespace shardwright::sim
