// SPDX-License-Identifier: Apache-2.0
#include "tuner/advice/lighter_training.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "sim/core/base/error.h"
#include "sim/core/units.h"
#include "tuner/search/space.h"

namespace shardwright::tuner {
namespace {

class Lighter {
 public:
  Lighter(const Model& model, const std::vector<Scenario>& scenarios, const Request& request,
          const SearchOptions& options, const Telling& telling)
      : model_(model),
        scenarios_(scenarios),
        request_(request),
        options_(options),
        telling_(telling) {}

  std::vector<Way> find() {
    train_every_weight();
    if (ways_.empty()) train_adapters();
    std::stable_sort(ways_.begin(), ways_.end(), [](const Way& a, const Way& b) {
      return a.gpu_s_per_token < b.gpu_s_per_token;
    });
    return std::move(ways_);
  }

 private:
  bool stopped() const { return options_.stop != nullptr && options_.stop->load(); }

  void train_every_weight() {
    if (request_.parallel.lora) return;
    const bool adamw = !request_.parallel.optimizer;
    const bool kept = request_.offload == Offload::kNone;
    Request changed = request_;
    if (adamw) {
      changed.parallel.optimizer = Optimizer::kAdamw8bit;
      keep("8-bit AdamW (changes the arithmetic)", "--optimizer adamw-8bit", changed);
    }
    if (kept) {
      changed = request_;
      changed.offload = Offload::kOptimizer;
      keep("the optimizer in the host's memory", "--offload optimizer", changed);
    }
  }

  void train_adapters() {
    if (request_.parallel.quantize) return;
    Request changed = request_;
    if (!request_.global_batch) changed.global_batch = fine_tuning_batch(request_.gpus);
    changed.micro_batch.reset();
    changed.grad_accum.reset();
    const std::int64_t rank = request_.parallel.lora.value_or(kUsualLoraRank);
    changed.parallel.lora = rank;
    const bool asked = request_.parallel.lora.has_value();
    if (!asked) keep(fmt::format("LoRA of rank {}", rank), "--task lora", changed);
    for (const Quantize quantize : {Quantize::kInt8, Quantize::kNf4}) {
      changed.parallel.quantize = quantize;
      const std::string_view name = name_of(quantize);
      keep(fmt::format("QLoRA of rank {} over {}", rank, name),
           fmt::format("{} --quantize {}", asked ? "" : "--task qlora", name), changed);
    }
  }

  void keep(const std::string& what, std::string flags, const Request& changed) {
    std::optional<Found> found = best(changed);
    std::string pieces;
    if (!found && !changed.loss_chunks) {
      Request in_pieces = changed;
      in_pieces.loss_chunks = kLossChunks;
      found = best(in_pieces);
      pieces = fmt::format(" --loss-chunks {}", kLossChunks);
    }
    if (!found) return;
    Way way;
    way.what = what + (pieces.empty() ? "" : ", the loss in pieces");
    way.flags = flags.substr(std::min(flags.size(), flags.find_first_not_of(' '))) + pieces;
    way.request = changed;
    way.headroom = options_.criteria.headroom;
    const Plan& plan = found->plan();
    way.gpu_s_per_token =
        found->prediction.time.iteration_s * static_cast<double>(plan.gpus) / tokens_per_step(plan);
    way.plan = *std::move(found);
    ways_.push_back(std::move(way));
  }

  std::optional<Found> best(const Request& changed) const {
    if (stopped()) return std::nullopt;
    try {
      return best_of_requests(model_, scenarios_, telling_(changed), options_).best;
    } catch (const Error&) {  // the software has no such plan
    }
    return std::nullopt;
  }

  const Model& model_;
  const std::vector<Scenario>& scenarios_;
  Request request_;
  const SearchOptions& options_;
  const Telling& telling_;
  std::vector<Way> ways_;
};

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

std::vector<Way> lighter_ways(const Model& model, const std::vector<Scenario>& scenarios,
                              const Request& request, const SearchOptions& options,
                              const Telling& telling) {
  return Lighter(model, scenarios, request, options, telling).find();
}

}  // namespace shardwright::tuner
