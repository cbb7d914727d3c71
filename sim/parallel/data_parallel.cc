// SPDX-License-Identifier: Apache-2.0
#include "sim/parallel/data_parallel.h"

#include <algorithm>
#include <cmath>

#include "sim/core/strategy.h"
#include "sim/parallel/adapters.h"
#include "sim/parallel/optimizer_state.h"
#include "sim/parallel/precision_body.h"
#include "sim/parallel/real.h"

namespace shardwright::sim {
namespace {

CollectiveWork whole(CommGroup group, Collective kind, double bytes) {
  CollectiveWork c;
  c.group = group;
  c.kind = kind;
  c.bytes = bytes;
  return c;
}

}  // namespace

bool gathers_layers(const Plan& plan, const Stack& stack) {
  const StrategyInfo& strategy = info_of(plan.strategy);
  return strategy.shards == Sharded::kParameters && strategy.reshards && plan.parallel.pp == 1 &&
         stack.parallel.reshards_after_forward;
}

bool registers_buffers(const Plan& plan, const profiles::Profile& profile, const Layout& layout) {
  const StrategyInfo& strategy = info_of(plan.strategy);
  const bool own_fsdp =
      strategy.software == Software::kMegatron && strategy.shards == Sharded::kParameters;
  return own_fsdp && profile.stack.parallel.gradients.registered_buffer_sms > 0 &&
         profile.cost.collectives.values.nvls &&
         layout.members_in_domain(CommGroup::kShard) == layout.group(CommGroup::kShard).size;
}

DataParallel::DataParallel(const Model& model, const Plan& plan, const Stack& stack,
                           BodyCosts& costs)
    : model_(model), plan_(plan), stack_(stack), costs_(costs) {
  const StrategyInfo& strategy = info_of(plan.strategy);
  sharded_ = strategy.shards == Sharded::kParameters;
  per_layer_ = gathers_layers(plan, stack);
  overlap_reduce_ =
      plan.parallel.overlap_grad_reduce.value_or(sharded_ || stack.parallel.overlap_grad_reduce);
  overlap_gather_ =
      plan.parallel.overlap_param_gather.value_or(sharded_ || stack.parallel.overlap_param_gather);
  gradient_bytes_ = gradient_bytes(plan, stack);
  if (gathers_narrow_weights(plan)) parameter_bytes_ = 1;
  if (plan.numerics.quantize != Quantize::kNone)
    parameter_bytes_ = quantized_weight_bytes(plan.numerics.quantize);
  if (!sharded_) {
    whole_bytes_ = stack.parallel.gradients.whole_bytes;
    copied_bytes_ = stack.parallel.gradients.whole_copy_bytes;
  }
  // Model-parallel frameworks holds weights in the compute type and says what it copies.
  const bool trains_full_weights = plan.numerics.lora == 0;
  casts_weights_ =
      strategy.software == Software::kDdp && !stack.parallel.always && trains_full_weights;
  copies_gradients_ =
      !sharded_ && !stack.parallel.always && plan.grad_accum == 1 && trains_full_weights;
  const RankShape rank = rank_shape(model, plan);
  vocabulary_ = f(rank.vocab) * f(rank.hidden);
  find_contention();
}

void DataParallel::find_contention() {
  constexpr double kLarge = 1e8;  // bytes
  const Layout& layout = costs_.layout();
  const bool shards = layout.group(CommGroup::kShard).size > 1;
  const CommGroup group = shards ? CommGroup::kShard : CommGroup::kReplicate;
  if (layout.group(group).size <= 1) return;
  const CollectiveCost cost = costs_.collective(
      whole(group, shards ? Collective::kReduceScatter : Collective::kAllReduce, kLarge));
  const bool in_node = layout.members_in_domain(group) == layout.group(group).size;
  stretched_ = costs_.stretched(in_node);
  lost_share_ = 1 - costs_.kept_beside(cost);
}

double DataParallel::gather_s(double parameters, double expert_parameters) {
  const auto gathered = [&](CommGroup group, double count) {
    return costs_.collective(whole(group, Collective::kAllGather, parameter_bytes_ * count)).time_s;
  };
  return gathered(CommGroup::kShard, parameters) +
         gathered(sharded_over(ModelUnit::kExperts), expert_parameters);
}

double DataParallel::reduce_s(double parameters, double expert_parameters) {
  const double bytes = gradient_bytes_ * parameters;
  const double shard = static_cast<double>(costs_.layout().group(CommGroup::kShard).size);
  double time =
      whole_bytes_ > 0
          ? costs_.collective(
                      whole(CommGroup::kShard, Collective::kAllReduce, whole_bytes_ * parameters))
                    .time_s +
                costs_.memory_s(copied_bytes_ * parameters, 1)
          : costs_.collective(whole(CommGroup::kShard, Collective::kReduceScatter, bytes)).time_s;
  time +=
      costs_.collective(whole(CommGroup::kReplicate, Collective::kAllReduce, bytes / shard)).time_s;
  time += costs_
              .collective(whole(sharded_over(ModelUnit::kExperts), Collective::kReduceScatter,
                                gradient_bytes_ * expert_parameters))
              .time_s;
  return time;
}

double DataParallel::cast_weights_s(double parameters) const {
  const double bytes = f(bytes_of(plan_.master_dtype)) + f(bytes_of(plan_.param_dtype));
  const bool casts = casts_weights_ && plan_.master_dtype != plan_.param_dtype;
  return casts ? costs_.memory_s(bytes * parameters, stack_.copies.cast) : 0;
}

double DataParallel::copied_gradients_s(double parameters) const {
  constexpr double kProduct = 2;  // bytes of a weight gradient
  return copies_gradients_
             ? costs_.memory_s((kProduct + f(bytes_of(plan_.reduce_dtype))) * parameters,
                               stack_.copies.cast)
             : 0;
}

CommunicationBytes DataParallel::sent_for(CommGroup group, double trained, double frozen) const {
  const Layout& layout = costs_.layout();
  const double shard = static_cast<double>(layout.group(group).size);
  const double replicas = group == CommGroup::kShard
                              ? static_cast<double>(layout.group(CommGroup::kReplicate).size)
                              : 1.0;
  const double share = (shard - 1) / shard;
  const double passes = per_layer_ ? 2 : 1;
  CommunicationBytes sent;
  sent.all_gather = share * passes * parameter_bytes_ * (trained + (sharded_ ? frozen : 0));
  if (whole_bytes_ > 0 && group == CommGroup::kShard) {
    sent.all_reduce = share * 2 * whole_bytes_ * trained;
  } else {
    sent.reduce_scatter = share * gradient_bytes_ * trained;
  }
  sent.all_reduce += 2 * gradient_bytes_ / shard * (replicas - 1) / replicas * trained;
  return sent;
}

double DataParallel::buckets(std::int64_t stage, double parameters) const {
  if (sharded_) return 8;  // units of a chunk; only the first and last show
  if (stage > 0) return 1;
  const double ranks = static_cast<double>(costs_.layout().group(CommGroup::kData).size);
  const double bucket = std::max(stack_.parallel.bucket_parameters,
                                 stack_.parallel.bucket_parameters_per_rank * ranks);
  return std::max(1.0, std::ceil(parameters / bucket));
}

void DataParallel::note(std::int64_t stage, double begin_s, double end_s) {
  if (reductions_ != nullptr && end_s > begin_s) reductions_->push_back({stage, begin_s, end_s});
}

void DataParallel::reduce(std::int64_t stage, const std::vector<ReducedChunk>& chunks,
                          StageTail& tail) {
  const double end = tail.end_s;
  if (!overlap_reduce_) {
    double parameters = 0, experts = 0;
    for (const ReducedChunk& chunk : chunks) {
      parameters += chunk.parameters;
      experts += chunk.expert_parameters;
    }
    tail.reduce_s = reduce_s(parameters, experts);
    tail.end_s = end + tail.reduce_s;
    note(stage, end, tail.end_s);
    return;
  }
  std::vector<const ReducedChunk*> order;
  for (const ReducedChunk& chunk : chunks) order.push_back(&chunk);
  std::sort(order.begin(), order.end(), [](const ReducedChunk* a, const ReducedChunk* b) {
    return a->last_backward_s < b->last_backward_s;
  });
  const bool trains_it = plan_.numerics.lora == 0;
  const double embedding = trains_it ? vocabulary_ : 0;
  double done = 0, late = 0;  // late: by what passes beside reductions take longer
  const auto slow_passes = [&](double begin, double until) {
    late += lost_share_ * std::max(0.0, std::min(done, until + late) - begin);
  };
  for (const ReducedChunk* chunk : order) {
    const bool is_last = chunk == order.back();
    const double pieces = is_last ? buckets(stage, chunk->parameters) : 1;
    const double experts = chunk->expert_parameters / pieces;
    // No bucket holds a part of a tensor, and the embedding's gradient comes last.
    const double last_parameters =
        std::max(chunk->parameters / pieces,
                 is_last && stage == 0 ? std::min(embedding, chunk->parameters) : 0.0);
    const double one = reduce_s(last_parameters, experts);
    const double other = (chunk->parameters - last_parameters) / std::max(1.0, pieces - 1);
    const double others = (pieces - 1) * reduce_s(other, experts);
    const double first = chunk->last_backward_s + late - chunk->backward_s * (pieces - 1) / pieces;
    const double begin = std::max(done, first);
    done = begin + stretched_ * others;
    slow_passes(begin, chunk->last_backward_s);
    if (pieces > 1) note(stage, begin, done);
    const double last = std::max(done, chunk->last_backward_s + late);
    done = last + (is_last ? 1 : stretched_) * one;
    if (!is_last) slow_passes(last, end);
    note(stage, last, done);
  }
  tail.end_s = std::max(end + late, done);
  tail.reduce_s = tail.end_s - end;
}

void DataParallel::gather(std::int64_t stage, const std::vector<ReducedChunk>& chunks,
                          StageTail& tail) {
  const StrategyInfo& strategy = info_of(plan_.strategy);
  if (strategy.shards == Sharded::kNothing) return;
  const auto gathered_of = [&](const ReducedChunk& chunk) {
    return chunk.parameters + (sharded_ ? chunk.frozen_parameters : 0);
  };
  if (!overlap_gather_) {
    double parameters = 0, experts = 0;
    for (const ReducedChunk& chunk : chunks) {
      parameters += gathered_of(chunk);
      experts += chunk.expert_parameters;
    }
    tail.gather_s = gather_s(parameters, experts);
    return;
  }
  // Stage s has the first s forward passes of the pipeline's fill to spare; a chunk has the passes
  // of those before it.
  const double fill = static_cast<double>(stage) * chunks.front().forward_s;
  double spare = fill;
  double gathered = 0;
  for (const ReducedChunk& chunk : chunks) {
    const double pieces = &chunk == &chunks.front() ? buckets(stage, gathered_of(chunk)) : 1;
    const double one = gather_s(gathered_of(chunk) / pieces, chunk.expert_parameters / pieces);
    gathered += one;
    tail.gather_s = std::max(tail.gather_s, gathered - spare);
    // The rest of the buckets beside the first pass.
    spare += chunk.forward_s * (pieces - 1) / pieces;
    gathered += (pieces - 1) * one;
    tail.gather_s = std::max(tail.gather_s, gathered - spare);
    spare +=
        chunk.forward_s / pieces + static_cast<double>(costs_.layout().pp - 1) * chunk.forward_s;
  }
  tail.gather_s += lost_share_ * std::max(0.0, gathered - fill - tail.gather_s);
}

StageTail DataParallel::tail(std::int64_t stage, const std::vector<ReducedChunk>& chunks,
                             double end_s) {
  StageTail tail;
  tail.end_s = end_s;
  double parameters = 0, experts = 0, frozen = 0;
  for (const ReducedChunk& chunk : chunks) {
    parameters += chunk.parameters;
    experts += chunk.expert_parameters;
    frozen += chunk.frozen_parameters;
  }
  if (!per_layer_) {
    reduce(stage, chunks, tail);
    gather(stage, chunks, tail);
  }
  const double times = per_layer_ ? static_cast<double>(plan_.grad_accum) : 1.0;
  tail.sent.add(sent_for(CommGroup::kShard, parameters, frozen), times);
  tail.sent.add(sent_for(CommGroup::kExpertData, experts, 0), times);
  const bool model_parallel = info_of(plan_.strategy).shards != Sharded::kNothing;
  const auto ranks = [&](CommGroup group) {
    return model_parallel ? static_cast<double>(costs_.layout().group(group).size) : 1.0;
  };
  const double owned =
      parameters / ranks(CommGroup::kShard) + experts / ranks(sharded_over(ModelUnit::kExperts));
  tail.norm_s = costs_.memory_s(owned * stack_.gradient_norm_bytes_per_parameter, 1) +
                costs_.collective(whole(CommGroup::kWorld, Collective::kAllReduce, 4)).time_s;
  tail.optimizer_s =
      costs_.memory_s(owned * update_bytes(plan_, stack_.optimizer.bytes_per_parameter),
                      stack_.optimizer.efficiency) +
      costs_.flops_s(owned * update_flops(model_, plan_));
  if (plan_.offload == Offload::kOptimizer) {
    // The state passes through the device beside the update.
    const double state = static_cast<double>(bytes_of(plan_.master_dtype)) + moment_bytes(plan_);
    tail.optimizer_s = std::max(tail.optimizer_s, costs_.host_link_s(2 * owned * state));
  }
  // Weights are cast to fewer bits before the first micro-batch.
  const double cast_bytes = weight_cast_bytes(plan_, transposes_fp8(stack_, costs_.gpu()));
  tail.optimizer_s +=
      costs_.memory_s((parameters + experts) * cast_bytes, stack_.parallel.cast_efficiency);
  return tail;
}

}  // namespace shardwright::sim
