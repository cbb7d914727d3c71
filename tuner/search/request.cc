// SPDX-License-Identifier: Apache-2.0
#include "tuner/search/request.h"

#include <algorithm>
#include <array>

#include "sim/core/strategy.h"

namespace shardwright::tuner {

Request request_holding(const GivenKnobs& knobs, const Model& model) {
  Request request;
  request.parallel = knobs.parallel;
  if (knobs.offload) {
    request.offload = knobs.offload->what;
    request.offload_layers = knobs.offload->layers;
  }
  request.seq_len = knobs.seq_len.value_or(usual_seq_len(model, knobs.parallel.lora.has_value()));
  if (!knobs.seq_len) request.adapters_seq_len = usual_seq_len(model, true);
  request.packed_length = knobs.packed_length.value_or(0);
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

Features features_of(const Request& request) {
  Plan plan;
  take_parallelism(request.parallel, plan);
  plan.offload = request.offload;
  if (request.recompute) plan.pieces = request.recompute->pieces;
  Features found = shardwright::features_of(plan);
  for (const Strategy strategy : request.strategies) {
    if (info_of(strategy).bucketed) found.add(Feature::kBucketedStrategy);
  }
  return found;
}

bool holds_sharding(const Request& request) {
  return !request.strategies.empty() || request.shard_group || request.buffers ||
         request.prefetch || request.deterministic || request.attention == AttentionKind::kEager;
}

Request sharing_data_alone(Request request) {
  GivenParallelism& given = request.parallel;
  given.tp = given.pp = given.cp = given.ep = 1;
  return request;
}

namespace {

constexpr std::array<std::string_view, 3> kNames{"time", "tokens-per-dollar", "headroom"};

}  // namespace

std::string_view name_of(Objective objective) {
  return kNames[static_cast<std::size_t>(objective)];
}

std::vector<std::string> objective_names() {
  return {kNames.begin(), kNames.end()};
}

std::optional<Objective> objective_from(std::string_view name) {
  const auto at = std::find(kNames.begin(), kNames.end(), name);
  if (at == kNames.end()) return std::nullopt;
  return static_cast<Objective>(at - kNames.begin());
}

double score_of(Objective objective, const Plan& plan, double step_s, Bytes total_bytes,
                double usd_per_gpu_hour) {
  if (objective == Objective::kHeadroom) return static_cast<double>(total_bytes);
  const double s_per_token = step_s / tokens_per_step(plan);
  if (objective == Objective::kTime) return s_per_token;
  const double price = usd_per_gpu_hour > 0 ? usd_per_gpu_hour / 3600 : 1;
  return s_per_token * static_cast<double>(plan.gpus) * price;
}

}  // namespace shardwright::tuner
