// SPDX-License-Identifier: Apache-2.0
#include "tuner/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sim/core/error.h"
#include "sim/program/layer_program.h"

namespace shardwright::tuner {

namespace {

constexpr std::int64_t kMicroBatches[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
constexpr int kBuffers[] = {2, 3, 4};

bool same_pass(const sim::UnitPass& a, const sim::UnitPass& b) {
  const auto same_op = [](const Op& x, const Op& y) {
    return x.kind == y.kind && x.phase == y.phase && x.of == y.of && x.work.bytes == y.work.bytes &&
           x.work.m == y.work.m && x.work.n == y.work.n && x.work.k == y.work.k;
  };
  const auto same_action = [](const MemoryAction& x, const MemoryAction& y) {
    return x.op == y.op && x.acquire == y.acquire && x.tensor == y.tensor && x.bytes == y.bytes;
  };
  return std::equal(a.ops.begin(), a.ops.end(), b.ops.begin(), b.ops.end(), same_op) &&
         std::equal(a.memory.begin(), a.memory.end(), b.memory.begin(), b.memory.end(),
                    same_action);
}

bool same_checkpointed(const sim::LayerPrograms& a, const sim::LayerPrograms& b) {
  return same_pass(a.layer_forward(true), b.layer_forward(true)) &&
         same_pass(a.layer_backward(true), b.layer_backward(true));
}

/// Sequences of one GPU in an optimizer step, cut into micro-batches in every way.
std::vector<Batch> batches_of(const Request& request) {
  const auto fits = [&](const Batch& batch) {
    return (!request.micro_batch || *request.micro_batch == batch.micro_batch) &&
           (!request.grad_accum || *request.grad_accum == batch.grad_accum);
  };
  std::vector<Batch> batches;
  if (!request.global_batch) {
    const std::int64_t accumulated = request.grad_accum.value_or(1);
    if (request.micro_batch) return {{*request.micro_batch, accumulated}};
    for (const std::int64_t micro_batch : kMicroBatches)
      batches.push_back({micro_batch, accumulated});
    return batches;
  }
  const std::int64_t global = *request.global_batch;
  if (global % request.gpus != 0) {
    const std::int64_t below = global / request.gpus * request.gpus;
    throw Error(fmt::format("--global-batch is {}, expected a multiple of the {} GPUs: {}", global,
                            request.gpus,
                            below == 0 ? fmt::format("at least {}", request.gpus)
                                       : fmt::format("{} or {}", below, below + request.gpus)));
  }
  const std::int64_t own = global / request.gpus;
  for (std::int64_t micro_batch = 1; micro_batch <= own; ++micro_batch) {
    const Batch batch{micro_batch, own / micro_batch};
    if (own % micro_batch == 0 && fits(batch)) batches.push_back(batch);
  }
  if (!batches.empty()) return batches;
  if (request.micro_batch && request.grad_accum) {
    throw Error(fmt::format(
        "--micro-batch {} with --grad-accum {} on {} GPUs makes a batch of {} sequences, but "
        "--global-batch is {}; leave one of them out",
        *request.micro_batch, *request.grad_accum, request.gpus,
        *request.micro_batch * *request.grad_accum * request.gpus, global));
  }
  throw Error(fmt::format(
      "{} is {}, expected a divisor of the {} sequences that each of {} GPUs has of a "
      "--global-batch of {}",
      request.micro_batch ? "--micro-batch" : "--grad-accum",
      request.micro_batch ? *request.micro_batch : *request.grad_accum, own, request.gpus, global));
}

std::vector<std::int64_t> shard_groups_of(std::int64_t gpus, std::int64_t gpus_per_node) {
  std::vector<std::int64_t> groups;
  for (std::int64_t group = 2; group < gpus; ++group) {
    if (gpus % group != 0) continue;
    if (gpus > gpus_per_node && gpus_per_node % group != 0 && group % gpus_per_node != 0) continue;
    groups.push_back(group);
  }
  return groups;
}

std::vector<Strategy> strategies_of(const Request& request, const Stack& stack) {
  if (stack.parallel.always) {
    throw Error(fmt::format("stack is {}, which always is model-parallel, expected another stack",
                            stack.id));
  }
  if (!request.strategies.empty()) return request.strategies;
  if (request.gpus == 1) return {Strategy::kSingle};
  std::vector<Strategy> strategies;
  for (const Strategy strategy : all_strategies()) {
    const StrategyInfo& info = info_of(strategy);
    if (!info.tuned || info.one_rank || executed_as(strategy, stack) != strategy) continue;
    if (request.shard_group && *request.shard_group < request.gpus && !info.hybrid) continue;
    strategies.push_back(strategy);
  }
  return strategies;
}

std::vector<DType> dtypes_of(std::optional<DType> fixed, bool allow_bf16) {
  if (fixed) return {*fixed};
  if (allow_bf16) return {DType::kFp32, DType::kBf16};
  return {DType::kFp32};
}

void set_layers(const Request& request, const Model& model, Space& space) {
  const std::int64_t most = ceil_div(model.layers, request.ckpt_stride);
  space.least_layers = 1;
  space.most_layers = most;
  if (request.recompute && request.recompute->recompute == Recompute::kNone) {
    if (request.ckpt_layers.value_or(0) > 0) {
      throw Error(fmt::format("--ckpt-layers is {}, but --recompute is none, expected 0",
                              *request.ckpt_layers));
    }
    space.most_layers = 0;
  }
  if (!request.ckpt_layers) return;
  if (*request.ckpt_layers > most) {
    throw Error(fmt::format("--ckpt-layers is {}, expected 0 to {}, the layers of the model",
                            *request.ckpt_layers, most));
  }
  space.recomputes_nothing = *request.ckpt_layers == 0;
  space.least_layers = std::max<std::int64_t>(1, *request.ckpt_layers);
  space.most_layers = *request.ckpt_layers;
}

/// Each plan once for every value of a knob; `values_of` says which values make sense for it.
template <class Knob, class ValuesOf>
void expand(std::vector<Plan>& plans, ValuesOf values_of, Knob Plan::*knob) {
  std::vector<Plan> expanded;
  for (const Plan& plan : plans) {
    for (const Knob& value : values_of(plan)) expanded.emplace_back(plan).*knob = value;
  }
  plans = std::move(expanded);
}

std::vector<Plan> with_batches(const std::vector<Plan>& plans, const std::vector<Batch>& batches) {
  std::vector<Plan> expanded;
  for (const Plan& plan : plans) {
    for (const Batch& batch : batches) {
      Plan& written = expanded.emplace_back(plan);
      written.micro_batch = batch.micro_batch;
      written.grad_accum = batch.grad_accum;
    }
  }
  return expanded;
}

}  // namespace

Request request_holding(const GivenKnobs& knobs, const Model& model) {
  Request request;
  request.parallel = knobs.parallel;
  if (knobs.offload) {
    request.offload = knobs.offload->what;
    request.offload_layers = knobs.offload->layers;
  }
  request.seq_len = knobs.seq_len.value_or(usual_seq_len(model));
  request.strategies = knobs.strategies;
  request.shard_group = knobs.shard_group;
  request.micro_batch = knobs.micro_batch;
  request.grad_accum = knobs.grad_accum;
  if (knobs.ckpt_layers) request.ckpt_layers = knobs.ckpt_layers->of(model.layers);
  request.recompute = knobs.recompute;
  request.buffers = knobs.buffers;
  request.prefetch = knobs.prefetch;
  request.attention = knobs.attention;
  request.deterministic = knobs.deterministic.value_or(false);
  request.loss_chunks = knobs.loss_chunks;
  request.allocator = knobs.allocator.value_or(request.allocator);
  request.reduce_dtype = knobs.reduce_dtype;
  request.master_dtype = knobs.master_dtype;
  request.moment_dtype = knobs.moment_dtype;
  request.param_dtype = knobs.param_dtype.value_or(request.param_dtype);
  return request;
}

Plan Family::at(std::int64_t ckpt_layers) const {
  Plan chosen = plan;
  chosen.ckpt_layers = ckpt_layers;
  return chosen;
}

Strategy executed_as(Strategy strategy, const Stack& stack) {
  if (stack.memory != MemoryManager::kStatic) return strategy;
  return info_of(strategy).native_twin.value_or(strategy);
}

bool uses_buffers(Strategy strategy, const Stack& stack) {
  const bool native = stack.memory == MemoryManager::kStatic;
  const Buffers buffers = info_of(executed_as(strategy, stack)).buffers;
  return buffers == Buffers::kAlways || (native && buffers == Buffers::kNative);
}

int arithmetic_changes(const Plan& plan) {
  return (plan.reduce_dtype == DType::kBf16 ? 1 : 0) + (plan.master_dtype == DType::kBf16 ? 1 : 0) +
         (plan.moment_dtype == DType::kBf16 ? 1 : 0);
}

std::vector<Recomputation> recomputations_of(const Model& model, const Plan& base,
                                             const Stack& stack) {
  std::vector<Recomputation> candidates{{Recompute::kFull, 0}};
  // PyTorch checkpoints modules or, in torchtitan's way, operators; pieces need an executor of our
  // kind.
  const bool pieces = stack.memory == MemoryManager::kStatic;
  const bool operators = pieces || stack.id == "torch-eager" || stack.id == "torch-compile";
  if (operators) candidates.push_back({Recompute::kSelectiveOp, 0});
  if (pieces) {
    for (std::uint8_t set = 1; set < kPieceBlock; ++set)
      candidates.push_back({Recompute::kPieces, set});
  }
  std::vector<Recomputation> distinct;
  std::vector<sim::LayerPrograms> known;
  Plan plan = base;
  plan.recompute = Recompute::kNone;
  const sim::LayerPrograms none(model, plan, stack);
  for (const Recomputation& candidate : candidates) {
    plan.recompute = candidate.recompute;
    plan.pieces = candidate.pieces;
    sim::LayerPrograms programs(model, plan, stack);
    const auto same = [&](const sim::LayerPrograms& other) {
      return same_checkpointed(programs, other);
    };
    const bool keeps_all = same_pass(programs.layer_forward(true), none.layer_forward(false)) &&
                           same_pass(programs.layer_backward(true), none.layer_backward(false));
    if (keeps_all || std::any_of(known.begin(), known.end(), same)) continue;
    distinct.push_back(candidate);
    known.push_back(std::move(programs));
  }
  return distinct;
}

Space space_of(const Request& request, const Model& model, const profiles::Profile& profile) {
  Space space;
  Plan& base = space.base;
  base.gpus = request.gpus;
  base.seq_len = request.seq_len;
  base.param_dtype = request.param_dtype;
  base.offload = request.offload;
  base.ckpt_stride = request.ckpt_stride;
  base.deterministic = request.deterministic;
  base.stack = request.stack.empty() ? profile.stack.id : request.stack;
  if (request.prefetch) base.prefetch = *request.prefetch;
  space.fills_buffers = !request.prefetch;
  space.strategies = strategies_of(request, profile.stack);
  if (request.shard_group) {
    base.shard_group = *request.shard_group;
    space.shard_groups = {*request.shard_group};
  } else {
    space.shard_groups = shard_groups_of(request.gpus, profile.cluster.gpus_per_node);
  }
  space.batches = batches_of(request);
  space.reduce_dtypes = dtypes_of(request.reduce_dtype, request.allow_bf16_reduce);
  space.master_dtypes = dtypes_of(request.master_dtype, request.allow_bf16_master);
  space.moment_dtypes = dtypes_of(request.moment_dtype, request.allow_bf16_moments);
  space.attentions = {AttentionKind::kFlash};
  // What runs from arenas is this project's executor, which keeps no scores.
  if (profile.stack.memory != MemoryManager::kStatic) {
    space.attentions.push_back(AttentionKind::kEager);
  }
  if (request.attention) space.attentions = {*request.attention};
  base.allocator = request.allocator;
  space.loss_chunks = {base.loss_chunks};
  // Logits of a large vocabulary may be most of the peak.
  if (profile.stack.memory != MemoryManager::kStatic && model.vocab >= kLargeVocabulary)
    space.loss_chunks.push_back(kLossChunks);
  if (request.loss_chunks) space.loss_chunks = {*request.loss_chunks};
  space.buffers.assign(std::begin(kBuffers), std::end(kBuffers));
  if (request.buffers) space.buffers = {*request.buffers};
  set_layers(request, model, space);
  if (space.most_layers == 0) {
    space.recomputes_nothing = true;
  } else if (request.recompute) {
    space.recomputations = {*request.recompute};
  } else {
    space.recomputations = recomputations_of(model, base, profile.stack);
  }
  return space;
}

std::vector<Family> families_of(const Space& space, const Model& model,
                                const profiles::Profile& profile) {
  std::vector<Family> families;
  std::optional<Error> first_error;
  const auto add = [&](Plan plan, std::int64_t least, std::int64_t most) {
    plan.ckpt_layers = most;
    try {
      check_plan(plan, model, profile.cluster.gpus_per_node);
    } catch (const Error& error) {
      if (!first_error) first_error = error;
      return;
    }
    plan.ckpt_layers = 0;
    families.push_back({std::move(plan), least, most});
  };
  const auto add_recomputations = [&](Plan plan) {
    if (space.recomputes_nothing) {
      plan.recompute = Recompute::kNone;
      plan.pieces = 0;
      add(plan, 0, 0);
    }
    for (const Recomputation& recomputation : space.recomputations) {
      plan.recompute = recomputation.recompute;
      plan.pieces = recomputation.pieces;
      add(plan, space.least_layers, space.most_layers);
    }
  };
  std::vector<Plan> plans{space.base};
  expand(
      plans, [&](const Plan&) { return space.strategies; }, &Plan::strategy);
  const std::vector<std::int64_t> whole{space.base.shard_group};
  expand(
      plans,
      [&](const Plan& plan) { return info_of(plan.strategy).hybrid ? space.shard_groups : whole; },
      &Plan::shard_group);
  plans = with_batches(plans, space.batches);
  expand(
      plans, [&](const Plan&) { return space.reduce_dtypes; }, &Plan::reduce_dtype);
  expand(
      plans, [&](const Plan&) { return space.master_dtypes; }, &Plan::master_dtype);
  expand(
      plans, [&](const Plan&) { return space.moment_dtypes; }, &Plan::moment_dtype);
  expand(
      plans, [&](const Plan&) { return space.attentions; }, &Plan::attention);
  expand(
      plans, [&](const Plan&) { return space.loss_chunks; }, &Plan::loss_chunks);
  const bool one_size = space.buffers.size() == 1;  // what the user fixes is kept as given
  const std::vector<int> usual{space.base.buffers};
  expand(
      plans,
      [&](const Plan& plan) {
        return one_size || uses_buffers(plan.strategy, profile.stack) ? space.buffers : usual;
      },
      &Plan::buffers);
  for (Plan& plan : plans) {
    if (space.fills_buffers) plan.prefetch = plan.buffers - 1;
    add_recomputations(plan);
  }
  if (families.empty()) {
    if (first_error) throw *first_error;
    throw Error(fmt::format(
        "there is no plan to search: hsdp needs a --shard-group of at least 2 that divides the {} "
        "GPUs and is less than all of them",
        space.base.gpus));
  }
  return families;
}

}  // namespace shardwright::tuner
