// SPDX-License-Identifier: Apache-2.0
#include "tuner/model_parallel_space.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <string>
#include <string_view>
#include <utility>

#include "sim/core/divisors.h"
#include "sim/core/error.h"
#include "sim/core/plan_knobs.h"
#include "sim/core/rack.h"
#include "sim/parallel/parallel_step.h"
#include "tuner/critical_batch.h"
#include "tuner/run_cost.h"

namespace shardwright::tuner {
namespace {

constexpr std::int64_t kFewestTokens = 1024;  // of a sequence, with context parallelism
constexpr std::int64_t kMostTokens = 65536;   // of a rank's micro-batch
constexpr std::int64_t kMostStages = 128;
constexpr double kTokensPerParameter = 20;  // Hoffmann et al., arXiv 2203.15556

bool is_power_of_two(std::int64_t value) {
  return std::has_single_bit(static_cast<std::uint64_t>(value));
}

/// Divisors of `whole`, smallest first; only `fixed`, where it is given.
std::vector<std::int64_t> divisors(std::int64_t whole, std::optional<std::int64_t> fixed) {
  std::vector<std::int64_t> result;
  for (std::int64_t d = 1; d <= whole; ++d) {
    if (whole % d == 0 && (!fixed || *fixed == d)) result.push_back(d);
  }
  return result;
}

/// Writes the parallel layouts of one request.
class Writer {
 public:
  Writer(const Request& request, const Model& model, const profiles::Profile& profile,
         Extent extent, ModelParallelSpace& space)
      : request_(request),
        given_(request.parallel),
        model_(model),
        profile_(profile),
        extent_(extent),
        space_(space),
        batch_(request.global_batch.value_or(space.usual_global_batch)) {}

  void write() {
    const std::int64_t joined = std::min(nvlink_gpus(profile_.cluster), request_.gpus);
    for (const std::int64_t tp : divisors(request_.gpus, given_.tp)) {
      if (!given_.tp && tp > joined) break;
      for (const std::int64_t cp : divisors(request_.gpus / tp, given_.cp)) {
        const std::int64_t fewest = request_.coarse ? 4 * kFewestTokens : kFewestTokens;
        if (!given_.cp && cp > 1 && request_.seq_len / cp < fewest) break;
        for (const std::int64_t pp : divisors(request_.gpus / tp / cp, given_.pp)) {
          if (pp > model_.layers) break;
          if (extent_ == Extent::kModelParallel && tp * cp * pp == 1 && !model_.is_moe()) continue;
          if (given_.pp || tries_stages(pp)) write_stages(tp, cp, pp);
        }
      }
    }
  }

  const std::optional<Error>& first_error() const { return first_error_; }

 private:
  bool tries_stages(std::int64_t pp) const {
    if (request_.coarse && !is_power_of_two(pp)) return false;
    return pp <= kMostStages &&
           (is_power_of_two(pp) || model_.layers % pp == 0 || (model_.layers + 2) % pp == 0);
  }

  /// Chunks of a stage: those that cut the layers evenly, and powers of two.
  std::vector<std::int64_t> virtual_stages(std::int64_t pp) const {
    if (given_.virtual_stages) return {*given_.virtual_stages};
    const bool interleaves =
        !given_.pp_schedule || info_of(*given_.pp_schedule).takes_virtual_stages();
    if (pp == 1 || !interleaves || !given_layout().empty()) return {1};
    std::vector<std::int64_t> result;
    if (!given_.pp_schedule) result.push_back(1);
    // Embedding and head count as a layer each where that divides (sim/parallel/stages.h).
    for (std::int64_t v = 2; v * pp <= model_.layers + 2; ++v) {
      const std::int64_t parts = v * pp;
      const bool evenly = model_.layers % parts == 0 || (model_.layers + 2) % parts == 0;
      const bool tried = is_power_of_two(v) && parts <= model_.layers;
      if (request_.coarse ? is_power_of_two(v) && (evenly || tried) : evenly || tried)
        result.push_back(v);
    }
    return result;
  }

  std::string given_layout() const { return given_.pp_layout.value_or(""); }

  /// The sequences of a replica, cut in every way.
  std::vector<Batch> batches(std::int64_t replicas) const {
    std::vector<Batch> result;
    const auto fits = [&](std::int64_t micro_batch, std::int64_t accum) {
      return (!request_.micro_batch || *request_.micro_batch == micro_batch) &&
             (!request_.grad_accum || *request_.grad_accum == accum);
    };
    if (batch_ == 0) {
      // Both are given, or only the accumulation: the batch is what comes of it.
      for (std::int64_t micro_batch = 1; micro_batch * request_.seq_len <= kMostTokens;
           micro_batch *= 2) {
        if (fits(micro_batch, *request_.grad_accum))
          result.push_back({micro_batch, *request_.grad_accum});
      }
      if (result.empty() && request_.micro_batch)
        result.push_back({*request_.micro_batch, *request_.grad_accum});
      return result;
    }
    if (batch_ % replicas != 0) return {};
    const std::int64_t own = batch_ / replicas;
    for (std::int64_t micro_batch = 1; micro_batch <= own; ++micro_batch) {
      const std::int64_t most = request_.coarse ? kMostTokens / 4 : kMostTokens;
      const bool large = micro_batch > 1 && micro_batch * request_.seq_len > most;
      if (large && !request_.micro_batch) break;
      if (own % micro_batch == 0 && fits(micro_batch, own / micro_batch))
        result.push_back({micro_batch, own / micro_batch});
    }
    return result;
  }

  void write_stages(std::int64_t tp, std::int64_t cp, std::int64_t pp) {
    const std::int64_t replicas = request_.gpus / (tp * cp * pp);
    const std::vector<Batch> all = batches(replicas);
    if (all.empty()) return;
    ParallelLayout layout;
    layout.tp = static_cast<std::int32_t>(tp);
    layout.cp = static_cast<std::int32_t>(cp);
    layout.pp = static_cast<std::int32_t>(pp);
    for (const std::int64_t chunks : virtual_stages(pp)) {
      layout.virtual_stages = static_cast<std::int32_t>(chunks);
      for (const std::int64_t ep : expert_ranks(tp * cp * replicas)) {
        layout.ep = static_cast<std::int32_t>(ep);
        for (const std::int64_t etp : expert_tensor_ranks(tp, tp * cp * replicas / ep)) {
          layout.etp = static_cast<std::int32_t>(etp);
          if (is_legal(layout, all.front())) write_batches(layout, all);
        }
      }
    }
  }

  std::vector<std::int64_t> expert_ranks(std::int64_t ranks) const {
    if (!model_.is_moe()) return {given_.ep.value_or(1)};
    std::vector<std::int64_t> result;
    for (const std::int64_t ep : divisors(model_.experts.count, given_.ep)) {
      if (given_.ep || ranks % ep == 0) result.push_back(ep);
    }
    return result;
  }

  std::vector<std::int64_t> expert_tensor_ranks(std::int64_t tp, std::int64_t ranks) const {
    if (given_.etp) return {*given_.etp};
    if (!model_.is_moe() || tp == 1 || ranks % tp != 0 || request_.coarse) return {1};
    return {1, tp};
  }

  bool is_legal(const ParallelLayout& layout, const Batch& batch) {
    Plan plan = space_.plan(layout);
    plan.micro_batch = batch.micro_batch;
    plan.grad_accum = batch.grad_accum;
    try {
      check_plan(plan, model_, profile_.cluster.gpus_per_node);
      (void)sim::partition_layers(model_, plan, profile_.stack);
    } catch (const Error& error) {
      if (!first_error_) first_error_ = error;
      return false;
    }
    return true;
  }

  /// Megatron's groups of interleaved micro-batches are whole; other schedules say what they need.
  bool runs(const ParallelLayout& layout, const Batch& batch) const {
    if (layout.pp == 1) return true;
    if (!given_.pp_schedule) {
      return layout.virtual_stages == 1 || batch.grad_accum % layout.pp == 0;
    }
    Plan plan = space_.plan(layout);
    plan.grad_accum = batch.grad_accum;
    try {
      check_shape(sim::pipeline_shape(plan));
    } catch (const Error&) {
      return false;
    }
    return true;
  }

  bool takes(Strategy strategy, const ParallelLayout& layout) const {
    const StrategyInfo& info = info_of(strategy);
    if (!request_.strategies.empty()) return true;
    // Sharded parameters stay gathered between the stages of a pipeline.
    if (info.shards == Sharded::kParameters) return info.reshards == (layout.pp == 1);
    return true;
  }

  void write_batches(ParallelLayout layout, const std::vector<Batch>& all) {
    for (const Batch& batch : all) {
      if (!runs(layout, batch)) continue;
      layout.micro_batch = static_cast<std::int32_t>(batch.micro_batch);
      layout.grad_accum = static_cast<std::int32_t>(batch.grad_accum);
      for (std::size_t s = 0; s < space_.strategies.size(); ++s) {
        if (!takes(space_.strategies[s], layout)) continue;
        layout.strategy = static_cast<std::int16_t>(s);
        for (std::size_t a = 0; a < space_.arithmetics.size(); ++a) {
          layout.numerics = static_cast<std::int16_t>(a);
          space_.layouts.push_back(layout);
        }
      }
    }
  }

  const Request& request_;
  const GivenParallelism& given_;
  const Model& model_;
  const profiles::Profile& profile_;
  Extent extent_;
  ModelParallelSpace& space_;
  std::int64_t batch_;
  std::optional<Error> first_error_;
};

std::vector<Strategy> model_parallel_strategies_of(const Request& request, const Stack& stack) {
  if (!request.strategies.empty()) return request.strategies;
  if (stack.parallel.always) return {Strategy::kDistributedOptimizer, Strategy::kMegatronFsdp};
  return {Strategy::kFsdp2, Strategy::kFsdp2NoReshard};
}

/// What the request leaves open and allows, the plainest first; what the GPU lacks is left out.
std::vector<Arithmetic> arithmetics_of(const Request& request, const Model& model,
                                       const profiles::Profile& profile, const Plan& base) {
  std::vector<Numerics> numerics{base.numerics};
  if (!request.parallel.precision) {
    for (const Precision precision : request.allowed_precisions) {
      Plan plan = base;
      plan.numerics.precision = precision;
      try {
        sim::check_modelled(model, plan, profile);
      } catch (const Error&) {
        continue;
      }
      numerics.push_back(plan.numerics);
    }
  }
  if (!request.parallel.optimizer) {
    const std::size_t plain = numerics.size();
    for (const Optimizer optimizer : request.allowed_optimizers) {
      for (std::size_t i = 0; i < plain; ++i) {
        numerics.push_back(numerics[i]);
        numerics.back().optimizer = optimizer;
      }
    }
  }
  const auto types = [](std::optional<DType> fixed, bool allow) {
    if (fixed) return std::vector<DType>{*fixed};
    return allow ? std::vector<DType>{DType::kFp32, DType::kBf16}
                 : std::vector<DType>{DType::kFp32};
  };
  std::vector<Arithmetic> result;
  for (const Numerics& one : numerics) {
    for (const DType reduce : types(request.reduce_dtype, request.allow_bf16_reduce)) {
      for (const DType master : types(request.master_dtype, request.allow_bf16_master)) {
        for (const DType moments : types(request.moment_dtype, request.allow_bf16_moments))
          result.push_back({reduce, master, moments, one});
      }
    }
  }
  return result;
}

/// Megatron's modules that are worth their while (core/transformer/transformer_config.py,
/// recompute_modules), and whole layers; PyTorch checkpoints layers or operators.
std::vector<Recomputation> recomputations(const Model& model, const Stack& stack) {
  const auto pieces = [](int set) {
    return Recomputation{Recompute::kPieces, static_cast<std::uint16_t>(set)};
  };
  std::vector<Recomputation> result{{Recompute::kFull, 0}};
  if (!stack.parallel.always) {
    result.push_back({Recompute::kSelectiveOp, 0});
    return result;
  }
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

/// Of a training of usual length.
std::int64_t usual_batch(const Request& request, const Model& model) {
  const double tokens =
      kTokensPerParameter * static_cast<double>(count_parameters(model).total(model.layers));
  const double critical = critical_tokens(model, tokens, profiles::load_operations());
  return shared_batch(critical, request.seq_len, request.gpus);
}

Plan base_of(const Request& request, const profiles::Profile& profile) {
  Plan base;
  base.strategy = Strategy::kDistributedOptimizer;
  base.gpus = request.gpus;
  base.seq_len = request.seq_len;
  base.param_dtype = request.param_dtype;
  base.offload = request.offload;
  base.offload_layers = request.offload_layers;
  base.shard_group = request.shard_group.value_or(0);
  base.attention = request.attention.value_or(AttentionKind::kFlash);
  base.allocator = request.allocator;
  base.loss_chunks = request.loss_chunks.value_or(0);
  base.deterministic = request.deterministic;
  base.recompute = Recompute::kNone;
  base.stack = request.stack.empty() ? profile.stack.id : request.stack;
  take_parallelism(request.parallel, base);
  return base;
}

/// Throws Error for a size that does not divide `whole`, with the nearest that do.
void check_divides(std::string_view name, std::optional<std::int64_t> size, std::int64_t whole,
                   std::string_view what) {
  if (!size || whole % *size == 0) return;
  throw Error(fmt::format("{} is {}, which does not divide the {} {}, expected {}", name, *size,
                          whole, what, nearest_divisors(*size, whole)));
}

void set_recomputation(const Request& request, const Model& model, const Stack& stack,
                       ModelParallelSpace& space) {
  const bool none = request.recompute && request.recompute->recompute == Recompute::kNone;
  if (none && request.ckpt_layers.value_or(0) > 0) {
    throw Error(fmt::format("--ckpt-layers is {}, but --recompute is none, expected 0",
                            *request.ckpt_layers));
  }
  space.ckpt_layers = request.ckpt_layers;
  if (none || request.ckpt_layers == 0) return;
  space.recomputes_nothing = !request.ckpt_layers;
  space.recomputations = request.recompute ? std::vector<Recomputation>{*request.recompute}
                                           : recomputations(model, stack);
  if (request.offload == Offload::kActivations && !request.recompute) {
    // Layers that run again keep nothing to offload.
    std::erase_if(space.recomputations,
                  [](const Recomputation& one) { return one.recompute == Recompute::kFull; });
  }
}

}  // namespace

Plan ModelParallelSpace::plan(const ParallelLayout& d) const {
  Plan plan = base;
  plan.strategy = strategies[static_cast<std::size_t>(d.strategy)];
  const Arithmetic& arithmetic = arithmetics[static_cast<std::size_t>(d.numerics)];
  plan.numerics = arithmetic.numerics;
  plan.reduce_dtype = arithmetic.reduce_dtype;
  plan.master_dtype = arithmetic.master_dtype;
  plan.moment_dtype = arithmetic.moment_dtype;
  plan.parallel.tp = d.tp;
  plan.parallel.cp = d.cp;
  plan.parallel.pp = d.pp;
  plan.parallel.virtual_stages = d.virtual_stages;
  plan.parallel.ep = d.ep;
  plan.parallel.etp = d.etp;
  if (d.pp == 1) plan.parallel.pp_schedule.reset();
  plan.micro_batch = d.micro_batch;
  plan.grad_accum = d.grad_accum;
  return plan;
}

std::int64_t ModelParallelSpace::steps(const ParallelLayout& d,
                                       const Recomputation& recomputation) const {
  if (ckpt_layers || recomputation.recompute == Recompute::kPieces) return 1;
  const std::int64_t chunks = std::int64_t{d.pp} * d.virtual_stages;
  return (layers - 1) / chunks + 1;
}

Plan ModelParallelSpace::plan(const ParallelLayout& d, const Recomputation& recomputation,
                              std::int64_t step) const {
  Plan result = plan(d);
  result.recompute = recomputation.recompute;
  result.pieces = recomputation.pieces;
  result.ckpt_layers = ckpt_layers.value_or(step * layers / steps(d, recomputation));
  return result;
}

std::int64_t ModelParallelSpace::size() const {
  std::int64_t count = 0;
  for (const ParallelLayout& layout : layouts) {
    count += recomputes_nothing ? 1 : 0;
    for (const Recomputation& one : recomputations) count += steps(layout, one);
  }
  return count;
}

bool asks_for_model_parallel(const Request& request) {
  Plan plan;
  take_parallelism(request.parallel, plan);
  plan.offload = request.offload;
  for (const Strategy strategy : request.strategies) {
    if (info_of(strategy).software == Software::kMegatron) return true;
  }
  if (request.recompute && (request.recompute->pieces & kMegatronPieces) != 0) return true;
  return !beyond_data_parallel(plan).empty();
}

bool asks_for_data_parallel(const Request& request) {
  return !request.strategies.empty() || request.shard_group || request.buffers ||
         request.prefetch || request.deterministic || request.attention == AttentionKind::kEager;
}

std::int64_t shared_batch(double critical_tokens, std::int64_t seq_len, std::int64_t gpus) {
  const auto sequences = static_cast<std::int64_t>(usual_batch_tokens(critical_tokens, seq_len) /
                                                   static_cast<double>(seq_len));
  const std::int64_t odd = gpus >> std::countr_zero(static_cast<std::uint64_t>(gpus));
  const auto times = static_cast<std::uint64_t>(std::max<std::int64_t>(1, sequences / odd));
  return odd * static_cast<std::int64_t>(std::bit_floor(times));
}

ModelParallelSpace model_parallel_space(const Request& request, const Model& model,
                                        const profiles::Profile& profile, Extent extent) {
  ModelParallelSpace space;
  space.layers = model.layers;
  space.base = base_of(request, profile);
  check_divides("tp", request.parallel.tp, request.gpus, "GPUs");
  check_divides("pp", request.parallel.pp, request.gpus, "GPUs");
  check_divides("cp", request.parallel.cp, request.gpus, "GPUs");
  if (model.experts.count > 0) {
    check_divides("ep", request.parallel.ep, model.experts.count, "experts");
  }
  space.strategies = model_parallel_strategies_of(request, profile.stack);
  sim::check_modelled(model, space.base, profile);
  space.arithmetics = arithmetics_of(request, model, profile, space.base);
  set_recomputation(request, model, profile.stack, space);
  if (!request.global_batch && !request.grad_accum)
    space.usual_global_batch = usual_batch(request, model);
  Writer writer(request, model, profile, extent, space);
  writer.write();
  if (!space.layouts.empty()) return space;
  if (writer.first_error()) throw *writer.first_error();
  const std::int64_t batch = request.global_batch.value_or(space.usual_global_batch);
  throw Error(
      fmt::format("no parallel layout of {} GPUs gives every replica an equal part of {} sequences "
                  "with what is held "
                  "fixed, expected another --global-batch, or fewer sizes that are given",
                  request.gpus, batch));
}

}  // namespace shardwright::tuner
