// SPDX-License-Identifier: Apache-2.0
#include "tuner/search/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string_view>
#include <utility>

#include "profiles/ledger/ledger.h"
#include "profiles/operations.h"
#include "sim/core/base/error.h"
#include "sim/core/base/numbers.h"
#include "sim/core/executed_plan.h"
#include "sim/core/layout.h"
#include "sim/core/units.h"
#include "sim/predict.h"
#include "sim/program/layer_program.h"
#include "sim/program/stages.h"
#include "tuner/runs/run_cost.h"
#include "tuner/search/evaluator.h"

namespace shardwright::tuner {

namespace {

constexpr std::int64_t kFewestTokens = 1024;  // of a rank's sequence, with context parallelism
constexpr std::int64_t kMostStages = 128;
constexpr std::int64_t kLargeVocabulary = 65536;
constexpr int kBuffers[] = {2, 3, 4};

/// Combines the values of all dimensions.
class Writer {
 public:
  Writer(const Request& request, const Model& model, const profiles::Profile& profile, Space& space)
      : request_(request),
        model_(model),
        profile_(profile),
        space_(space),
        numerics_(numerics_of(request, model, profile, space.base)),
        arithmetics_(arithmetics_of(request)),
        shard_groups_(request.shard_group
                          ? std::vector<std::int64_t>{*request.shard_group}
                          : shard_groups_of(request.gpus, profile.cluster.gpus_per_node)),
        shares_(shares_replicas()),
        is_own_(profile.stack.id == kOwnStack) {}

  void write() {
    for (const GivenParallelism& given : settings_of(request_, model_, profile_.stack)) {
      given_ = given;
      base_ = space_.base;
      take_parallelism(given, base_);
      write_meshes();
    }
  }

  [[noreturn]] void refuse() const {
    if (first_error_) throw *first_error_;
    if (!space_.always_shares_batch) {
      if (batches_of_rank(request_).empty()) throw InvalidPlan(batch_refusal(request_));
      throw InvalidPlan(fmt::format(
          "there is no plan to search: hsdp needs a --shard-group of at least 2 that divides the "
          "{} GPUs and is less than all of them",
          request_.gpus));
    }
    throw InvalidPlan(fmt::format(
        "no parallel layout of {} GPUs gives every replica an equal part of {} sequences with what "
        "is held fixed, expected another --global-batch, or fewer sizes that are given",
        request_.gpus, batch()));
  }

 private:
  /// Whether ranks may share more than data.
  bool shares_replicas() const {
    if (!shares_data_alone(features_of(request_), model_, profile_.stack)) return true;
    const Cluster& cluster = profile_.cluster;
    const bool is_linked = cluster.nics_per_node > 0 || request_.gpus <= nvlink_gpus(cluster);
    return request_.gpus > 1 && cluster.devices_per_node == 0 && is_linked &&
           !holds_sharding(request_);
  }
  /// Whether a size that may be given is tried above 1.
  bool divides(std::optional<std::int64_t> given, Feature feature) const {
    return shares_ && (given || profile_.stack.parallel.features().has(feature));
  }

  std::int64_t batch() const { return request_.global_batch.value_or(space_.usual_global_batch); }

  void write_meshes() {
    const std::int64_t joined = std::min(nvlink_gpus(profile_.cluster), request_.gpus);
    for (const std::int64_t tp : divisors(request_.gpus, given_.tp)) {
      if (tp > 1 && !divides(given_.tp, Feature::kTensor)) break;
      if (!given_.tp && tp > joined) break;
      for (const std::int64_t cp : divisors(request_.gpus / tp, given_.cp)) {
        if (cp > 1 && !divides(given_.cp, Feature::kContext)) break;
        const std::int64_t fewest = request_.coarse ? 4 * kFewestTokens : kFewestTokens;
        if (!given_.cp && cp > 1 && request_.seq_len / cp < fewest) break;
        for (const std::int64_t pp : divisors(request_.gpus / tp / cp, given_.pp)) {
          if (pp > model_.layers || (pp > 1 && !divides(given_.pp, Feature::kPipeline))) break;
          if (given_.pp || tries_stages(pp)) write_stages(tp, cp, pp);
        }
      }
    }
  }

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
    if (pp == 1 || !interleaves || !given_.pp_layout.value_or("").empty()) return {1};
    std::vector<std::int64_t> result;
    if (!given_.pp_schedule) result.push_back(1);
    // Embedding and head count as a layer each where that divides (sim/program/stages.h).
    for (std::int64_t v = 2; v * pp <= model_.layers + 2; ++v) {
      const std::int64_t parts = v * pp;
      const bool evenly = model_.layers % parts == 0 || (model_.layers + 2) % parts == 0;
      const bool tried = is_power_of_two(v) && parts <= model_.layers;
      if (request_.coarse ? is_power_of_two(v) && (evenly || tried) : evenly || tried)
        result.push_back(v);
    }
    return result;
  }

  std::vector<std::int64_t> expert_ranks(std::int64_t ranks) const {
    if (!model_.is_moe()) return {given_.ep.value_or(1)};
    std::vector<std::int64_t> result;
    for (const std::int64_t ep : divisors(model_.experts.count, given_.ep)) {
      if (given_.ep || ranks % ep == 0) result.push_back(ep);
    }
    return result;
  }

  bool loads_are_even() const {
    const auto& load = given_.expert_load;
    return request_.parallel.expert_capacity || (load && load->routing == Routing::kBalanced);
  }

  std::vector<std::int64_t> expert_tensor_ranks(std::int64_t tp, std::int64_t ranks) const {
    if (given_.etp) return {*given_.etp};
    if (!model_.is_moe() || tp == 1 || ranks % tp != 0) return {1};
    // Ranks that divide every expert have equal loads whatever the router does.
    if (request_.coarse && loads_are_even()) return {1};
    return {1, tp};
  }

  /// Whether a setting of the framework that the search chose makes no difference here.
  bool ignores_settings(const Parallelism& p) const {
    const GivenParallelism& asked = request_.parallel;
    return (given_.tp_overlap != asked.tp_overlap && !p.sequence_parallel()) ||
           (given_.dispatcher != asked.dispatcher && p.ep == 1) ||
           (given_.ep_overlap != asked.ep_overlap && p.ep == 1) ||
           (given_.pp_schedule != asked.pp_schedule && p.pp == 1);
  }

  void write_stages(std::int64_t tp, std::int64_t cp, std::int64_t pp) {
    const std::int64_t replicas = request_.gpus / (tp * cp * pp);
    const bool alone = tp * cp * pp == 1 && !space_.always_shares_batch;
    const std::vector<Batch> batches =
        alone ? batches_of_rank(request_) : batches_of_replicas(request_, batch(), replicas);
    if (batches.empty()) return;
    Plan plan = base_;
    Parallelism& p = plan.parallel;
    p.tp = tp;
    p.cp = cp;
    p.pp = pp;
    if (pp == 1) p.pp_schedule.reset();
    if (cp == 1) p.cp_comm.reset();
    // By default tensor ranks divide tokens, which some lengths do not allow (check_tensor).
    if (!given_.sp && tp > 1 && plan.seq_len / cp % tp != 0) p.sp = false;
    for (const std::int64_t chunks : virtual_stages(pp)) {
      p.virtual_stages = chunks;
      for (const std::int64_t ep : expert_ranks(tp * cp * replicas)) {
        p.ep = ep;
        for (const std::int64_t etp : expert_tensor_ranks(tp, tp * cp * replicas / ep)) {
          p.etp = etp;
          if (!ignores_settings(p)) write_plans(plan, batches);
        }
      }
    }
  }

  void write_plans(Plan plan, const std::vector<Batch>& batches) {
    for (const Numerics& numerics : numerics_) {
      plan.numerics = numerics;
      data_alone_ = shares_data_alone(features_of(plan), model_, profile_.stack);
      for (const Strategy strategy : space_.strategies) {
        plan.strategy = strategy;
        if (takes(strategy, plan.parallel)) write_shard_groups(plan, batches);
      }
    }
  }

  /// Megatron's FSDP and pipelines exclude each other (its guide names tp, ep and cp beside FSDP),
  /// and PyTorch's keeps parameters gathered between the stages of one, as this project's
  /// executor does with every strategy, and gradients whole: unless somebody asks for it.
  bool takes(Strategy strategy, const Parallelism& p) const {
    const StrategyInfo& info = info_of(strategy);
    const bool gathers = is_own_ ? info.shards > Sharded::kOptimizer : info.reshards;
    return p.pp == 1 || !gathers || (given_.pp && !request_.strategies.empty());
  }

  void write_shard_groups(Plan plan, const std::vector<Batch>& batches) {
    const std::vector<std::int64_t> whole{space_.base.shard_group};
    const bool hybrid = data_alone_ && info_of(plan.strategy).hybrid;
    for (const std::int64_t group : hybrid ? shard_groups_ : whole) {
      plan.shard_group = group;
      for (const Batch& batch : batches) {
        plan.micro_batch = batch.micro_batch;
        plan.grad_accum = batch.grad_accum;
        if (&batch == &batches.front() && !is_legal(plan)) break;
        if (is_executed(plan) && runs(plan)) write_arithmetics(plan);
      }
    }
  }

  bool is_legal(const Plan& plan) {
    try {
      check_plan(plan, model_, profile_.cluster.gpus_per_node);
      (void)sim::partition_layers(model_, plan, profile_.stack);
    } catch (const InvalidPlan& error) {
      if (!first_error_) first_error_ = error;
      return false;
    }
    return true;
  }

  /// What `run` refuses is no plan of its framework.
  bool is_executed(const Plan& plan) {
    if (!is_own_) return true;
    const std::string why = why_not_run(model_, plan);
    if (!why.empty() && !first_error_) first_error_ = InvalidPlan(why);
    return why.empty();
  }

  /// Megatron's groups of interleaved micro-batches are whole; other schedules say what they need.
  bool runs(const Plan& plan) const {
    const Parallelism& p = plan.parallel;
    if (p.pp == 1) return true;
    if (!given_.pp_schedule) return p.virtual_stages == 1 || plan.grad_accum % p.pp == 0;
    try {
      check_shape(sim::pipeline_shape(plan));
    } catch (const InvalidPlan&) {
      return false;
    }
    return true;
  }

  void write_arithmetics(Plan plan) {
    for (const Arithmetic& one : arithmetics_) {
      plan.reduce_dtype = one.reduce_dtype;
      plan.master_dtype = one.master_dtype;
      plan.moment_dtype = one.moment_dtype;
      write_units(plan);
    }
  }

  /// What is tried where ranks share data alone.
  void write_units(const Plan& plan) {
    const bool arenas = profile_.stack.memory == MemoryManager::kStatic;
    std::vector<AttentionKind> attentions{request_.attention.value_or(AttentionKind::kFlash)};
    // This project's executor keeps no scores.
    if (!request_.attention && data_alone_ && !arenas) attentions.push_back(AttentionKind::kEager);
    std::vector<std::int64_t> loss_chunks{request_.loss_chunks.value_or(plan.loss_chunks)};
    // Logits of a large vocabulary may be most of the peak.
    if (!request_.loss_chunks && data_alone_ && !arenas && model_.vocab >= kLargeVocabulary)
      loss_chunks.push_back(kLossChunks);
    std::vector<int> buffers{request_.buffers.value_or(plan.buffers)};
    if (!request_.buffers && data_alone_ && uses_buffers(plan.strategy, profile_.stack))
      buffers.assign(std::begin(kBuffers), std::end(kBuffers));
    for (const AttentionKind attention : attentions) {
      for (const std::int64_t chunks : loss_chunks) {
        for (const int count : buffers) {
          Plan& written = space_.plans.emplace_back(plan);
          written.attention = attention;
          written.loss_chunks = chunks;
          written.buffers = count;
          if (space_.fills_buffers && data_alone_) written.prefetch = count - 1;
        }
      }
    }
  }

  const Request& request_;
  const Model& model_;
  const profiles::Profile& profile_;
  Space& space_;
  std::vector<Numerics> numerics_;
  std::vector<Arithmetic> arithmetics_;
  std::vector<std::int64_t> shard_groups_;
  bool shares_, is_own_;
  GivenParallelism given_;  // with the settings that are tried
  Plan base_;
  bool data_alone_ = false;
  std::optional<InvalidPlan> first_error_;
};

Plan base_of(const Request& request, const profiles::Profile& profile) {
  Plan base;
  base.gpus = request.gpus;
  base.seq_len = request.seq_len;
  base.packed_length = request.packed_length;
  base.param_dtype = request.param_dtype;
  base.offload = request.offload;
  base.offload_layers = request.offload_layers;
  base.shard_group = request.shard_group.value_or(0);
  base.attention = request.attention.value_or(AttentionKind::kFlash);
  base.allocator = request.allocator;
  base.ckpt_stride = request.ckpt_stride;
  base.deterministic = request.deterministic;
  base.prefetch = request.prefetch.value_or(base.prefetch);
  base.recompute = Recompute::kNone;
  base.stack = request.stack.empty() ? profile.stack.id : request.stack;
  take_parallelism(request.parallel, base);
  return base;
}

/// Throws Error for a size that does not divide `whole`, with the nearest that do.
void check_divides(std::string_view name, std::optional<std::int64_t> size, std::int64_t whole,
                   std::string_view what) {
  if (!size || whole % *size == 0) return;
  throw InvalidPlan(fmt::format("{} is {}, which does not divide the {} {}, expected {}", name,
                                *size, whole, what, nearest_divisors(*size, whole)));
}

void check_sizes(const Request& request, const Model& model) {
  check_divides("tp", request.parallel.tp, request.gpus, "GPUs");
  check_divides("pp", request.parallel.pp, request.gpus, "GPUs");
  check_divides("cp", request.parallel.cp, request.gpus, "GPUs");
  if (model.experts.count > 0)
    check_divides("ep", request.parallel.ep, model.experts.count, "experts");
}

void set_recomputation(const Request& request, const Model& model, const Stack& stack,
                       Space& space) {
  space.layers = ceil_div(model.layers, request.ckpt_stride);
  space.pieces_of_all_layers = stack.memory != MemoryManager::kStatic;
  const bool none = request.recompute && request.recompute->recompute == Recompute::kNone;
  if (none && request.ckpt_layers.value_or(0) > 0) {
    throw InvalidPlan(fmt::format("--ckpt-layers is {}, but --recompute is none, expected 0",
                                  *request.ckpt_layers));
  }
  if (request.ckpt_layers.value_or(0) > space.layers) {
    throw InvalidPlan(fmt::format("--ckpt-layers is {}, expected 0 to {}, the layers of the model",
                                  *request.ckpt_layers, space.layers));
  }
  space.ckpt_layers = request.ckpt_layers;
  if (none || request.ckpt_layers == 0) return;
  space.recomputes_nothing = !request.ckpt_layers;
  space.recomputations = request.recompute ? std::vector<Recomputation>{*request.recompute}
                                           : recomputations_of(model, space.base, stack);
  if (request.offload == Offload::kActivations && !request.recompute) {
    // Layers that run again keep nothing to offload.
    std::erase_if(space.recomputations,
                  [](const Recomputation& one) { return one.recompute == Recompute::kFull; });
  }
}

}  // namespace

std::int64_t Space::steps(const Plan& plan, const Recomputation& recomputation) const {
  if (ckpt_layers) return 1;
  if (recomputation.recompute == Recompute::kPieces && pieces_of_all_layers) return 1;
  return ceil_div(layers, plan.parallel.pp * plan.parallel.virtual_stages);
}

Plan Space::at(const Plan& plan, const Recomputation& recomputation, std::int64_t step) const {
  Plan result = plan;
  result.recompute = recomputation.recompute;
  result.pieces = recomputation.pieces;
  result.ckpt_layers = ckpt_layers.value_or(step * layers / steps(plan, recomputation));
  return result;
}

std::int64_t Space::size() const {
  std::int64_t count = 0;
  for (const Plan& plan : plans) {
    count += recomputes_nothing ? 1 : 0;
    for (const Recomputation& one : recomputations) count += steps(plan, one);
  }
  return count;
}

bool Space::assumes_batch(const Plan& plan) const {
  return usual_global_batch > 0 && (always_shares_batch || plan.parallel.replica() > 1);
}

bool shares_data_alone(Features asked, const Model& model, const Stack& stack) {
  return !stack.optimizer.bucketed && model.is_plain() && !asked.any();
}

Space space_of(const Request& request, const Model& model, const profiles::Profile& profile) {
  Space space;
  space.base = base_of(request, profile);
  space.fills_buffers = !request.prefetch;
  check_sizes(request, model);
  sim::check_modelled(model, space.base, profile);
  set_recomputation(request, model, profile.stack, space);
  space.strategies = strategies_of(request, profile.stack);
  space.always_shares_batch = !shares_data_alone(features_of(request), model, profile.stack);
  if (!request.global_batch && !request.grad_accum)
    space.usual_global_batch = usual_batch(request, model);
  Writer writer(request, model, profile, space);
  writer.write();
  if (space.plans.empty()) writer.refuse();
  return space;
}

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
  if (!request.allow_software && stack.id != kOwnStack) return all;
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
