// SPDX-License-Identifier: Apache-2.0
// A step that counts for nothing, before the first one that does.
//
// What a GPU does for the first time loads code, builds plans and allocates, which may wait until
// the GPU is idle. A collective keeps it busy until all ranks have come. Where both meet, ranks
// wait for each other for ever (CUDA's guide calls it a hazard of lazy loading), so first
// everything but collectives is done once, and then each collective alone; stages, whose operations
// are not the same, do it side by side, and then connect to one another. Of many micro-batches the
// first two and the last are gone through: those between repeat the second. Attention of packed
// documents runs in every way in which a later batch may ask for it.
#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

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
  if (groups.pipeline) {
    result.pipeline = std::make_unique<SilentCommunicator>(*groups.pipeline, device);
  }
  return result;
}

Batch first_micro_step_of(const Batch& batch, std::int64_t micro_steps) {
  const auto part = [&](const std::vector<std::int32_t>& all) {
    return std::vector<std::int32_t>(all.begin(), all.begin() + std::ssize(all) / micro_steps);
  };
  return {part(batch.tokens), part(batch.targets), part(batch.positions), part(batch.first_keys)};
}

}  // namespace

std::size_t Executor::most_of_all_ranks(std::size_t mine) {
  std::vector<std::size_t> all(static_cast<std::size_t>(groups_.world->size()));
  groups_.world->exchange(std::as_bytes(std::span(&mine, 1)),
                          std::as_writable_bytes(std::span(all)));
  return *std::max_element(all.begin(), all.end());
}

bool Executor::is_rehearsed(std::int64_t micro_step) const {
  return micro_step < 2 || micro_step + 1 >= plan_.grad_accum;
}

/// Targets of the part of the vocabulary that this tensor rank has: nobody tells of others.
Batch Executor::with_own_targets(Batch batch) const {
  const Slice own{SliceAlong::kRows, static_cast<std::int16_t>(place_.tp),
                  static_cast<std::int16_t>(mesh_.tp)};
  const Slice::Range part = own.of(model_.vocab);
  for (std::int32_t& target : batch.targets) {
    if (target >= 0) target = static_cast<std::int32_t>(part.begin + target % part.size());
  }
  return batch;
}

void Executor::rehearse_alone(const Batch& batch) {
  RankGroups groups = silent(groups_, device_);
  std::swap(groups, groups_);
  rehearses_ = true;
  model_ops_.rehearse(true);
  try {
    StepOptions options;
    options.adamw.step = kNoStep;
    step(with_own_targets(batch), options);
    evaluate(first_micro_step_of(with_own_targets(batch), plan_.grad_accum));
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

/// A collective of tensor ranks, on whatever lies where activations do.
void Executor::move_anything(const Op& op) {
  const StreamId stream = streams_[op.stream];
  const Bytes bytes = std::min(op.work.bytes, memory_.arena().size_bytes);
  const Array all{memory_.activations(), plan_.param_dtype, bytes / bytes_of(plan_.param_dtype)};
  Communicator& ranks = *groups_.tensor;
  const Array own = share_of(all, ranks.size(), ranks.rank());
  if (op.kind == OpKind::kAllGather) {
    ranks.all_gather(stream, own, all);
  } else if (op.kind == OpKind::kReduceScatter) {
    ranks.reduce_scatter(stream, all, own, false, {});
  } else {
    ranks.all_reduce(stream, all);
  }
}

void Executor::rehearse(const Batch& batch, const OnStage& on_stage) {
  const auto tell = [&](const std::string& what, bool is_collective) {
    if (on_stage) on_stage(what, is_collective);
  };
  tell("a step without collectives", false);
  rehearse_alone(batch);
  tell("the rendezvous of all ranks after a step without collectives", false);
  groups_.world->barrier();
  // One of each kind and size of the stage; all ranks meet behind each.
  std::set<std::tuple<OpKind, bool, std::int64_t>> known;
  micro_step_ = plan_.grad_accum - 1;
  std::vector<OpInstance> collectives;
  std::optional<OpInstance> norm;  // an all-gather of the step's records, between all ranks
  for_each_op(schedule_, [&](const OpInstance& at, const Op& op) {
    if (op.kind == OpKind::kGradientNorm && !norm) norm = at;
    if (!is_collective(op.kind)) return;
    const bool is_of_layer = moves_activations(op);
    const std::int64_t size =
        is_of_layer ? op.work.bytes : layout_.unit(schedule_.target(op, at.unit)).elements;
    if (known.insert({op.kind, is_of_layer, size}).second) collectives.push_back(at);
  });
  const auto rehearse_one = [&](const OpInstance& at, const auto& issue) {
    tell("the " + words_of(at.id), true);
    begin_op(at);
    finish_work(issue);
  };
  const std::size_t most = most_of_all_ranks(collectives.size());
  for (std::size_t i = 0; i < most; ++i) {
    if (i < collectives.size()) {
      const OpInstance& at = collectives[i];
      const Op& op = schedule_.ops[at.op];
      rehearse_one(at, [&] { moves_activations(op) ? move_anything(op) : run_sharding(at, op); });
    }
    groups_.world->barrier();
  }
  if (norm) rehearse_one(*norm, [&] { sum_gradients(); });
  groups_.world->barrier();
  if (groups_.pipeline) {
    tell("the first messages between the stages", true);
    finish_work([&] {
      groups_.pipeline->connect_messages({workspace_.scratch(), DType::kFp32, 1});
    });
    groups_.world->barrier();
  }
  memory_.clear(device_, streams_[0]);
  workspace_.initialize(model_, device_, streams_[0]);
  device_.synchronize();
}

}  // namespace shardwright::exec
