// SPDX-License-Identifier: Apache-2.0
// A step that counts for nothing, before the first one that does.
//
// What a GPU does for the first time loads code, builds plans and allocates, which may wait until
// the GPU is idle. A collective keeps it busy until all ranks have come. Where both meet, ranks
// wait for each other for ever (CUDA's guide calls it a hazard of lazy loading), so first
// everything but collectives is done once, and then each collective alone. Of many micro-batches
// the first two and the last are gone through: those between repeat the second. Attention of packed
// documents runs in every way in which a later batch may ask for it.
#include <limits>
#include <set>
#include <utility>

#include "exec/comm/silent_communicator.h"
#include "exec/executor.h"

namespace shardwright::exec {
namespace {

/// No run has so many steps, so nobody traces this one.
constexpr std::int64_t kNoStep = std::numeric_limits<std::int32_t>::max();

RankGroups silent(const RankGroups& groups, Device& device) {
  RankGroups result;
  result.replicate = std::make_unique<SilentCommunicator>(*groups.replicate, device);
  result.shard = std::make_unique<SilentCommunicator>(*groups.shard, device);
  result.world = std::make_unique<SilentCommunicator>(*groups.world, device);
  if (groups.tensor) result.tensor = std::make_unique<SilentCommunicator>(*groups.tensor, device);
  return result;
}

Batch first_micro_step_of(const Batch& batch, std::int64_t micro_steps) {
  const auto part = [&](const std::vector<std::int32_t>& all) {
    return std::vector<std::int32_t>(all.begin(), all.begin() + std::ssize(all) / micro_steps);
  };
  return {part(batch.tokens), part(batch.targets), part(batch.positions), part(batch.first_keys)};
}

}  // namespace

bool Executor::is_rehearsed(std::int64_t micro_step) const {
  return micro_step < 2 || micro_step + 1 >= plan_.grad_accum;
}

void Executor::rehearse_alone(const Batch& batch) {
  RankGroups groups = silent(groups_, device_);
  std::swap(groups, groups_);
  rehearses_ = true;
  model_ops_.rehearse(true);
  try {
    StepOptions options;
    options.adamw.step = kNoStep;
    step(batch, options);
    evaluate(first_micro_step_of(batch, plan_.grad_accum));
  } catch (...) {
    std::swap(groups, groups_);
    rehearses_ = false;
    model_ops_.rehearse(false);
    throw;
  }
  std::swap(groups, groups_);
  rehearses_ = false;
  model_ops_.rehearse(false);
  // As the constructor left it.
  memory_.clear(device_, streams_[0]);
  workspace_.initialize(model_, device_, streams_[0]);
  device_.synchronize();
}

void Executor::rehearse(const Batch& batch, const OnStage& on_stage) {
  const auto tell = [&](const std::string& what, bool is_collective) {
    if (on_stage) on_stage(what, is_collective);
  };
  tell("a step without collectives", false);
  rehearse_alone(batch);
  tell("the rendezvous of all ranks after a step without collectives", false);
  groups_.world->barrier();
  // One of each kind and size; an all-gather of the step's records is in the update.
  std::set<std::pair<OpKind, std::int64_t>> known;
  micro_step_ = plan_.grad_accum - 1;
  for_each_op(schedule_, [&](const OpInstance& at, const Op& op) {
    const bool collective = is_collective(op.kind) || op.kind == OpKind::kGradientNorm;
    if (!collective || moves_activations(op)) return;
    const std::int64_t size =
        op.kind == OpKind::kGradientNorm ? 0 : layout_.unit(schedule_.target(op, at.unit)).elements;
    if (!known.insert({op.kind, size}).second) return;
    tell("the " + words_of(at.id), true);
    begin_op(at);
    finish_work([&] {
      if (op.kind == OpKind::kGradientNorm) {
        sum_gradients();
      } else {
        run_sharding(at, op);
      }
    });
    groups_.world->barrier();
  });
  memory_.clear(device_, streams_[0]);
  workspace_.initialize(model_, device_, streams_[0]);
  device_.synchronize();
}

}  // namespace shardwright::exec
