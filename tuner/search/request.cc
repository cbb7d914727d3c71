// SPDX-License-Identifier: Apache-2.0
#include "tuner/search/request.h"

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

}  // namespace shardwright::tuner
