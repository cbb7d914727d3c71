// SPDX-License-Identifier: Apache-2.0
#include "tuner/search/dimensions.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "profiles/ledger/software_settings.h"
#include "profiles/operations.h"
#include "sim/check_modelled.h"
#include "sim/core/base/invalid_plan.h"
#include "sim/program/layer_program.h"
#include "tuner/runs/critical_batch.h"
#include "tuner/runs/run_cost.h"
#include "tuner/search/simulator.h"

namespace shardwright::tuner {

namespace {

constexpr std::int64_t kMicroBatches[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
constexpr std::int64_t kMostTokens = 65536;  // of a replica's micro-batch
constexpr double kTokensPerParameter = 20;   // Hoffmann et al., arXiv 2203.15556

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

/// Megatron's modules that are worth their while (core/transformer/transformer_config.py,
/// recompute_modules), and whole layers.
std::vector<Recomputation> recompute_modules(const Model& model, const Stack& stack) {
  const auto pieces = [](int set) {
    return Recomputation{Recompute::kPieces, static_cast<std::uint16_t>(set)};
  };
  std::vector<Recomputation> result{{Recompute::kFull, 0}};
  if (!stack.parallel.fused_attention) result.push_back(pieces(kPieceCoreAttention));
  result.push_back(pieces(kPieceNorm));
  if (!model.is_moe()) {
    result.push_back(pieces(kPieceFfn));
    return result;
  }
  result.push_back(pieces(kPieceMoeActivation));
  result.push_back(pieces(kPieceNorm | kPieceMoeActivation));
  result.push_back(pieces(kPieceMoe));
  if (model.latent.kv_rank > 0) {
    result.push_back(pieces(kPieceMlaUpProjection));
    result.push_back(pieces(kPieceNorm | kPieceMlaUpProjection | kPieceMoeActivation));
    result.push_back(pieces(kPieceMlaUpProjection | kPieceMoe));
  }
  return result;
}

std::vector<DType> dtypes_of(std::optional<DType> fixed, bool allow_bf16) {
  if (fixed) return {*fixed};
  if (allow_bf16) return {DType::kFp32, DType::kBf16};
  return {DType::kFp32};
}

bool holds(const Request& request, const Batch& batch) {
  return (!request.micro_batch || *request.micro_batch == batch.micro_batch) &&
         (!request.grad_accum || *request.grad_accum == batch.grad_accum);
}

/// Every one so far with every setting in place of what the framework does, after itself.
template <typename Enum>
void add_settings(const std::vector<Enum>& settings, std::optional<Enum> usual,
                  std::optional<Enum> GivenParallelism::*given,
                  std::vector<GivenParallelism>& all) {
  const std::size_t count = all.size();
  for (const Enum setting : settings) {
    if (setting == usual) continue;
    for (std::size_t i = 0; i < count; ++i) {
      if (all[i].*given) continue;
      GivenParallelism changed = all[i];
      changed.*given = setting;
      all.push_back(std::move(changed));
    }
  }
}

}  // namespace

std::vector<std::int64_t> divisors(std::int64_t whole, std::optional<std::int64_t> fixed) {
  std::vector<std::int64_t> result;
  for (std::int64_t d = 1; d <= whole; ++d) {
    if (whole % d == 0 && (!fixed || *fixed == d)) result.push_back(d);
  }
  return result;
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
  if (!request.strategies.empty()) return request.strategies;
  if (stack.optimizer.bucketed) return {Strategy::kDistributedOptimizer, Strategy::kMegatronFsdp};
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

std::vector<Numerics> numerics_of(const Request& request, const Model& model,
                                  const profiles::Profile& profile, const Plan& base) {
  std::vector<Numerics> numerics{base.numerics};
  if (!request.parallel.precision) {
    for (const Precision precision : request.allowed_precisions) {
      Plan plan = base;
      plan.numerics.precision = precision;
      try {
        sim::check_modelled(model, plan, profile);
      } catch (const InvalidPlan&) {
        continue;
      }
      numerics.push_back(plan.numerics);
    }
  }
  if (request.parallel.optimizer) return numerics;
  const std::size_t plain = numerics.size();
  for (const Optimizer optimizer : request.allowed_optimizers) {
    for (std::size_t i = 0; i < plain; ++i) {
      Plan plan = base;
      plan.numerics = numerics[i];
      plan.numerics.optimizer = optimizer;
      try {
        sim::check_modelled(model, plan, profile);
      } catch (const InvalidPlan&) {
        continue;
      }
      numerics.push_back(plan.numerics);
    }
  }
  return numerics;
}

std::vector<Arithmetic> arithmetics_of(const Request& request) {
  std::vector<Arithmetic> result;
  for (const DType reduce : dtypes_of(request.reduce_dtype, request.allow_bf16_reduce)) {
    for (const DType master : dtypes_of(request.master_dtype, request.allow_bf16_master)) {
      for (const DType moments : dtypes_of(request.moment_dtype, request.allow_bf16_moments))
        result.push_back({reduce, master, moments});
    }
  }
  return result;
}

std::vector<GivenParallelism> settings_of(const Request& request, const Model& model,
                                          const Stack& stack) {
  std::vector<GivenParallelism> all{request.parallel};
  if (!request.allow_software) return all;
  const profiles::SoftwareSettings settings = profiles::software_settings(stack);
  add_settings(settings.tensor_overlaps, std::optional(profiles::usual_overlap(stack, model)),
               &GivenParallelism::tp_overlap, all);
  if (model.is_moe()) {
    add_settings(settings.dispatchers, std::optional(profiles::usual_dispatcher(stack)),
                 &GivenParallelism::dispatcher, all);
    add_settings(settings.expert_overlaps, std::optional(false), &GivenParallelism::ep_overlap,
                 all);
  }
  add_settings(settings.schedules, std::optional<PipelineKind>(), &GivenParallelism::pp_schedule,
               all);
  return all;
}

std::vector<Batch> batches_of_rank(const Request& request) {
  std::vector<Batch> batches;
  if (!request.global_batch) {
    const std::int64_t accumulated = request.grad_accum.value_or(1);
    if (request.micro_batch) return {{*request.micro_batch, accumulated}};
    for (const std::int64_t micro_batch : kMicroBatches)
      batches.push_back({micro_batch, accumulated});
    return batches;
  }
  if (*request.global_batch % request.gpus != 0) return {};
  const std::int64_t own = *request.global_batch / request.gpus;
  for (const std::int64_t micro_batch : divisors(own)) {
    if (holds(request, {micro_batch, own / micro_batch}))
      batches.push_back({micro_batch, own / micro_batch});
  }
  return batches;
}

std::vector<Batch> batches_of_replicas(const Request& request, std::int64_t sequences,
                                       std::int64_t replicas) {
  std::vector<Batch> result;
  if (sequences == 0) {
    // Both are given, or only the accumulation: the batch is what comes of it.
    for (std::int64_t micro_batch = 1; micro_batch * request.seq_len <= kMostTokens;
         micro_batch *= 2) {
      if (holds(request, {micro_batch, *request.grad_accum}))
        result.push_back({micro_batch, *request.grad_accum});
    }
    if (result.empty() && request.micro_batch)
      result.push_back({*request.micro_batch, *request.grad_accum});
    return result;
  }
  if (sequences % replicas != 0) return {};
  const std::int64_t own = sequences / replicas;
  const std::int64_t most = request.coarse ? kMostTokens / 4 : kMostTokens;
  for (std::int64_t micro_batch = 1; micro_batch <= own; ++micro_batch) {
    const bool large = micro_batch > 1 && micro_batch * request.seq_len > most;
    if (large && !request.micro_batch) break;
    if (own % micro_batch == 0 && holds(request, {micro_batch, own / micro_batch}))
      result.push_back({micro_batch, own / micro_batch});
  }
  return result;
}

std::string batch_refusal(const Request& request) {
  const std::int64_t global = request.global_batch.value_or(0);
  if (global % request.gpus != 0) {
    const std::int64_t below = global / request.gpus * request.gpus;
    return fmt::format("--global-batch is {}, expected a multiple of the {} GPUs: {}", global,
                       request.gpus,
                       below == 0 ? fmt::format("at least {}", request.gpus)
                                  : fmt::format("{} or {}", below, below + request.gpus));
  }
  if (request.micro_batch && request.grad_accum) {
    return fmt::format(
        "--micro-batch {} with --grad-accum {} on {} GPUs makes a batch of {} sequences, but "
        "--global-batch is {}; leave one of them out",
        *request.micro_batch, *request.grad_accum, request.gpus,
        *request.micro_batch * *request.grad_accum * request.gpus, global);
  }
  return fmt::format(
      "{} is {}, expected a divisor of the {} sequences that each of {} GPUs has of a "
      "--global-batch of {}",
      request.micro_batch ? "--micro-batch" : "--grad-accum",
      request.micro_batch.value_or(request.grad_accum.value_or(1)), global / request.gpus,
      request.gpus, global);
}

std::vector<Recomputation> recomputations_of(const Model& model, const Plan& base,
                                             const Stack& stack) {
  if (stack.optimizer.bucketed) return recompute_modules(model, stack);
  std::vector<Recomputation> candidates{{Recompute::kFull, 0}};
  // PyTorch checkpoints modules or, in torchtitan's way, operators; pieces need an executor of our
  // kind.
  const bool pieces = stack.memory == MemoryManager::kStatic;
  const bool operators = pieces || stack.family == "torch-eager" || stack.family == "torch-compile";
  if (operators) candidates.push_back({Recompute::kSelectiveOp, 0});
  if (pieces) {
    for (std::uint8_t set = 1; set < kPieceBlock; ++set)
      candidates.push_back({Recompute::kPieces, set});
  }
  if (!model.is_plain()) return candidates;
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

std::int64_t usual_batch(const Request& request, const Model& model) {
  const double tokens =
      kTokensPerParameter * static_cast<double>(count_parameters(model).total(model.layers));
  const double critical = critical_tokens(model, tokens, profiles::load_operations());
  return shared_batch(critical, request.seq_len, request.gpus);
}

std::int64_t shared_batch(double critical_tokens, std::int64_t seq_len, std::int64_t gpus) {
  const auto sequences = static_cast<std::int64_t>(usual_batch_tokens(critical_tokens, seq_len) /
                                                   static_cast<double>(seq_len));
  const std::int64_t odd = gpus >> std::countr_zero(static_cast<std::uint64_t>(gpus));
  const auto times = static_cast<std::uint64_t>(std::max<std::int64_t>(1, sequences / odd));
  return odd * static_cast<std::int64_t>(std::bit_floor(times));
}

}  // namespace shardwright::tuner
