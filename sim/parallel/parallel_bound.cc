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
// in the shape of a V have no such order; their bound is the busiest stage. Of what follows the
// pipeline, norm, optimizer and gathers are exact; the reduction of gradients counts only as far as
// it cannot hide. Bodies of layers are those of the full prediction and are kept by what they
// depend on.
#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "sim/parallel/parallel_step.h"
#include "sim/parallel/real.h"

namespace shardwright::sim {
namespace {

std::size_t mixed(std::size_t seed, std::int64_t value) {
  return seed ^
         (std::hash<std::int64_t>{}(value) + 0x9e3779b97f4a7c15ULL + (seed << 6U) + (seed >> 2U));
}

/// A chunk of every kind of body that plans of this recomputation may hold.
ChunkContent every_body(const Model& model, const Plan& plan) {
  const bool dense = model.expert_layers() < model.layers;
  const bool again = plan.recompute != Recompute::kNone && plan.ckpt_layers > 0;
  const std::int64_t kinds = dense && model.is_moe() ? 2 : 1;
  ChunkContent content;
  content.layers = 2 * kinds;
  content.expert_layers = !model.is_moe() ? 0 : dense ? 2 : content.layers;
  content.recomputed = again ? kinds : 0;
  content.extra_predictions = model.mtp_layers;
  content.embedding = content.head = true;
  return content;
}

Nanoseconds rounded_ns(double seconds) {
  return static_cast<Nanoseconds>(std::llround(seconds * 1e9));
}

/// The inequality above, in the nanoseconds of the recurrence; stages are added one by one.
class PipelineBound {
 public:
  explicit PipelineBound(const PipelineShape& shape)
      : ordered_(shape.info().order == ChunkOrder::kLoop),
        splits_(shape.info().splits_backward),
        passes_(shape.passes()) {}

  void add(double forward_s, double backward_s, double delayed_s) {
    const Nanoseconds forward = rounded_ns(forward_s), backward = rounded_ns(backward_s);
    const Nanoseconds delayed = rounded_ns(delayed_s);
    if (is_first_) {
      first_forward_ = forward;
      first_backward_ = splits_ ? backward - delayed : backward;
      is_first_ = false;
    }
    busy_ += forward + backward;
    delayed_ += delayed;
  }

  void end_stage() {
    const Nanoseconds arrives = ordered_ ? forward_before_ : 0;
    const Nanoseconds returns = ordered_ ? backward_before_ : 0;
    if (splits_) {
      least_ = std::max(
          {least_, arrives + passes_ * busy_, arrives + passes_ * (busy_ - delayed_) + returns});
    } else {
      least_ = std::max(least_, arrives + passes_ * busy_ + returns);
    }
    forward_before_ += first_forward_;
    backward_before_ += first_backward_;
    busy_ = delayed_ = 0;
    is_first_ = true;
  }

  double least_s() const { return static_cast<double>(least_) * 1e-9; }

 private:
  bool ordered_, splits_, is_first_ = true;
  Nanoseconds passes_, least_ = 0, busy_ = 0, delayed_ = 0;
  Nanoseconds first_forward_ = 0, first_backward_ = 0, forward_before_ = 0, backward_before_ = 0;
};

}  // namespace

ParallelEngine::BodyKey ParallelEngine::body_key(const Plan& plan) const {
  BodyKey key;
  key.plan = plan;
  // What no list of body.h depends on.
  if (!gathers_layers(plan, profile_.stack)) {
    key.plan.strategy = Strategy::kSingle;
    key.plan.shard_group = 0;
  }
  key.plan.grad_accum = std::min<std::int64_t>(plan.grad_accum, 2);
  key.plan.ckpt_layers = plan.recompute == Recompute::kNone || plan.ckpt_layers == 0 ? 0 : 1;
  key.plan.parallel.pp = key.plan.parallel.virtual_stages = 1;
  key.plan.parallel.pp_schedule.reset();
  key.plan.parallel.pp_layout.clear();
  const Layout& layout = costs_.layout();
  key.places = {layout.domain, layout.members_in_domain(CommGroup::kTensor),
                layout.members_in_domain(CommGroup::kContext),
                layout.members_in_domain(CommGroup::kExpert)};
  return key;
}

std::size_t ParallelEngine::BodyKeyHash::operator()(const BodyKey& key) const {
  const Plan& plan = key.plan;
  const Parallelism& p = plan.parallel;
  std::size_t seed = 0;
  for (const std::int64_t value :
       {p.tp, p.cp, p.ep, p.etp, plan.micro_batch, plan.ckpt_layers,
        static_cast<std::int64_t>(plan.recompute), std::int64_t{plan.pieces}, plan.grad_accum}) {
    seed = mixed(seed, value);
  }
  for (const std::int64_t place : key.places) seed = mixed(seed, place);
  return seed;
}

const ParallelEngine::Bodies& ParallelEngine::known_bodies(const Plan& plan) {
  BodyKey key = body_key(plan);
  const auto at = bodies_.find(key);
  if (at != bodies_.end()) return at->second;
  return bodies_.emplace(std::move(key), time_bodies(plan, {every_body(model_, plan)}))
      .first->second;
}

double ParallelEngine::least_step_s(const Plan& plan) {
  const PipelineShape shape = pipeline_shape(plan);
  const std::vector<ChunkContent> parts = partition_layers(model_, plan, profile_.stack);
  place(plan);
  DataParallel data(model_, plan, profile_.stack, costs_);
  const Bodies& bodies = known_bodies(plan);
  std::vector<std::pair<ChunkContent, ChunkPasses>> distinct;
  distinct.reserve(parts.size());
  const auto passes_of = [&](const ChunkContent& part) -> const ChunkPasses& {
    ChunkContent content = part;
    content.first_layer = 0;
    for (const auto& [known, passes] : distinct) {
      if (known == content) return passes;
    }
    return distinct.emplace_back(content, time_chunk(plan, bodies, part, data)).second;
  };
  PipelineBound bound(shape);
  double updated_s = 0;
  for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
    std::vector<ReducedChunk> chunks;
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      const ChunkContent& content = of_chunk(parts, shape, {stage, c});
      const ChunkPasses& passes = passes_of(content);
      chunks.push_back(reduced_chunk(plan, content, passes));
      bound.add(passes.forward_s, passes.backward_s, passes.delayed_s);
    }
    bound.end_stage();
    const StageTail tail = data.tail(stage, chunks, 0);
    updated_s = std::max(updated_s, tail.norm_s + tail.optimizer_s + tail.gather_s);
  }
  return varied_s(plan, bound.least_s() + updated_s + profile_.stack.host.step_s);
}

}  // namespace shardwright::sim
