#include "cli/flags/search_request.h"

#include <fmt/core.h>

#include <algorithm>

#include "sim/core/error.h"

namespace shardwright::cli {
namespace {

tuner::Recomputation recomputation_from(const std::string& words) {
  Plan plan;
  try {
    set_recompute(plan, words);
  } catch (const Error& error) {
    throw Error(fmt::format("--{}.", error.what()));
  }
  return {plan.recompute, plan.pieces};
}

std::int64_t usual_seq_len(const Model& model) {
  std::int64_t tokens = std::min(Plan{}.seq_len, model.max_positions);
  if (model.sliding_window > 0) tokens = std::min(tokens, model.sliding_window);
  return tokens;
}

}  // namespace

tuner::Request request_from(const PlanFlags& flags, const Model& model) {
  tuner::Request request;
  request.seq_len = flags.seq_len.value_or(usual_seq_len(model));
  request.strategies = flags.strategies;
  request.shard_group = flags.shard_group;
  request.micro_batch = flags.micro_batch;
  request.grad_accum = flags.grad_accum;
  if (flags.ckpt_layers) {
    request.ckpt_layers = flags.ckpt_layers->all ? model.layers : flags.ckpt_layers->count;
  }
  if (flags.recompute) request.recompute = recomputation_from(*flags.recompute);
  if (flags.buffers) request.buffers = static_cast<int>(*flags.buffers);
  if (flags.prefetch) request.prefetch = static_cast<int>(*flags.prefetch);
  request.attention = flags.attention;
  request.reduce_dtype = flags.reduce_dtype;
  request.moment_dtype = flags.moment_dtype;
  if (flags.param_dtype) request.param_dtype = *flags.param_dtype;
  return request;
}

}  // namespace shardwright::cli
