// SPDX-License-Identifier: Apache-2.0
#include "tuner/advice/lighter_training.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "sim/core/base/invalid_plan.h"
#include "sim/core/units.h"
#include "tuner/search/space.h"

namespace shardwright::tuner {
namespace {

std::optional<Found> answered(const Answering& answering, const Request& request) {
  try {
    return answering(request);
  } catch (const InvalidPlan&) {  // no framework has such a plan
    return std::nullopt;
  }
}

/// With the loss in pieces where nothing else fits.
void keep_adapters(const std::string& what, const std::string& flags, Request changed,
                   const Answering& answering, std::vector<Way>& ways) {
  std::optional<Found> found = answered(answering, changed);
  Way way;
  way.what = what;
  way.flags = flags;
  if (!found && !changed.loss_chunks) {
    changed.loss_chunks = kLossChunks;
    found = answered(answering, changed);
    way.what += ", the loss in pieces";
    way.flags += fmt::format(" --loss-chunks {}", kLossChunks);
  }
  if (!found) return;
  way.request = std::move(changed);
  set_plan(way, *std::move(found));
  ways.push_back(std::move(way));
}

}  // namespace

std::int64_t fine_tuning_batch(std::int64_t gpus) {
  constexpr std::int64_t kUsual = 16;
  return ceil_div(kUsual, gpus) * gpus;
}

bool trains_adapters(const Way& way) {
  return way.plan.plan().numerics.lora > 0;
}

void rank_ways(std::vector<Way>& ways, std::int64_t gpus) {
  constexpr std::int64_t kNode = 8;  // beyond which nobody gives up training the model itself
  const auto rank = [&](const Way& way) {
    const bool more = way.request.gpus > gpus, adapters = trains_adapters(way);
    const int group = adapters ? (gpus <= kNode ? 1 : 3) : (more ? 2 : 0);
    return std::make_pair(group, way.gpu_s_per_token);
  };
  std::stable_sort(ways.begin(), ways.end(),
                   [&](const Way& a, const Way& b) { return rank(a) < rank(b); });
}

std::vector<Way> adapter_ways(const Request& request, const Answering& answering) {
  std::vector<Way> ways;
  if (request.parallel.quantize.value_or(Quantize::kNone) != Quantize::kNone) return ways;
  Request changed = request;
  if (!request.global_batch) changed.global_batch = fine_tuning_batch(request.gpus);
  changed.micro_batch.reset();
  changed.grad_accum.reset();
  const std::int64_t rank = request.parallel.lora.value_or(kUsualLoraRank);
  changed.parallel.lora = rank;
  changed.seq_len = request.adapters_seq_len.value_or(request.seq_len);
  std::string sequences;
  if (changed.seq_len != request.seq_len)
    sequences = fmt::format(" on sequences of {}", changed.seq_len);
  if (!request.parallel.lora)
    keep_adapters(fmt::format("LoRA of rank {}{}", rank, sequences), "--task lora", changed,
                  answering, ways);
  for (const Quantize quantize : {Quantize::kInt8, Quantize::kNf4}) {
    changed.parallel.quantize = quantize;
    const std::string_view name = name_of(quantize);
    keep_adapters(fmt::format("QLoRA of rank {} over {}{}", rank, name, sequences),
                  fmt::format("--task qlora --quantize {}", name), changed, answering, ways);
  }
  return ways;
}

}  // namespace shardwright::tuner
