// SPDX-License-Identifier: Apache-2.0
#include "tuner/model_parallel_advice.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "sim/core/error.h"
#include "sim/core/rack.h"

namespace shardwright::tuner {
namespace {

/// Searches with something changed; keeps those that lead somewhere.
class Ways {
 public:
  Ways(const Model& model, const std::vector<Scenario>& scenarios, const Request& request,
       const SearchOptions& options)
      : model_(model), scenarios_(scenarios), request_(request), options_(options) {
    options_.progress = nullptr;
  }

  const Request& request() const { return request_; }

  /// Whether something fits then. `what` and `flags` are words about the plan that was found.
  bool try_one(const Request& changed, const std::function<std::string(const Plan&)>& what,
               const std::function<std::string(const Plan&)>& flags,
               std::optional<double> headroom = std::nullopt) {
    if (options_.stop != nullptr && options_.stop->load()) return true;
    try {
      SearchOptions options = options_;
      options.criteria.headroom = headroom.value_or(options.criteria.headroom);
      const ModelParallelSpace space =
          model_parallel_space(changed, model_, scenarios_.front().profile);
      std::vector<Found> best = ModelParallelSearch(model_, scenarios_, space, options).best(1);
      if (best.empty()) return false;
      Way way;
      way.plan = std::move(best.front());
      const Plan& plan = way.plan.plan();
      way.what = what(plan);
      way.flags = flags(plan);
      way.request = changed;
      way.headroom = options.criteria.headroom;
      way.gpu_s_per_token = way.plan.prediction.time.iteration_s * static_cast<double>(plan.gpus) /
                            tokens_per_step(plan);
      ways_.push_back(std::move(way));
      return true;
    } catch (const Error&) {  // such a change makes no sense here
      return false;
    }
  }
  bool try_one(const Request& changed, const std::string& what, const std::string& flags) {
    return try_one(
        changed, [&](const Plan&) { return what; }, [&](const Plan&) { return flags; });
  }

  std::vector<Way> cheapest(std::size_t count) && {
    std::stable_sort(ways_.begin(), ways_.end(), [](const Way& a, const Way& b) {
      return a.gpu_s_per_token < b.gpu_s_per_token;
    });
    if (ways_.size() > count) ways_.resize(count);
    return std::move(ways_);
  }

 private:
  const Model& model_;
  const std::vector<Scenario>& scenarios_;
  const Request& request_;
  SearchOptions options_;
  std::vector<Way> ways_;
};

template <typename Value, typename Now>
void free_size(Ways& ways, const char* flag, std::optional<Value> GivenParallelism::*given,
               Now now) {
  const Request& request = ways.request();
  if (!(request.parallel.*given)) return;
  Request changed = request;
  (changed.parallel.*given).reset();
  const auto words = [&](const Plan& plan) { return fmt::format("--{} {}", flag, now(plan)); };
  ways.try_one(
      changed, [&](const Plan& plan) { return fmt::format("{} {}", flag, now(plan)); }, words);
}

void free_knobs(Ways& ways) {
  using G = GivenParallelism;
  free_size(ways, "tp", &G::tp, [](const Plan& p) { return p.parallel.tp; });
  free_size(ways, "pp", &G::pp, [](const Plan& p) { return p.parallel.pp; });
  free_size(ways, "cp", &G::cp, [](const Plan& p) { return p.parallel.cp; });
  free_size(ways, "ep", &G::ep, [](const Plan& p) { return p.parallel.ep; });
  free_size(ways, "virtual-stages", &G::virtual_stages,
            [](const Plan& p) { return p.parallel.virtual_stages; });
  const Request& request = ways.request();
  if (request.micro_batch && request.global_batch) {
    Request changed = request;
    changed.micro_batch.reset();
    changed.grad_accum.reset();
    const auto flag = [](const Plan& p) { return fmt::format("--micro-batch {}", p.micro_batch); };
    ways.try_one(
        changed, [](const Plan& p) { return fmt::format("micro-batch {}", p.micro_batch); }, flag);
  }
  if (request.recompute || request.ckpt_layers) {
    Request changed = request;
    changed.recompute.reset();
    changed.ckpt_layers.reset();
    ways.try_one(
        changed,
        [](const Plan& p) {
          return fmt::format("{} layers of recompute {}", p.ckpt_layers, recompute_name(p));
        },
        [](const Plan& p) {
          return fmt::format("--ckpt-layers {} --recompute {}", p.ckpt_layers, recompute_name(p));
        });
  }
}

void change_job(Ways& ways, const profiles::Profile& profile, double headroom) {
  const Request& request = ways.request();
  if (headroom > 0) {
    ways.try_one(
        request, [](const Plan&) { return std::string("no memory kept free"); },
        [](const Plan&) { return std::string("--headroom 0"); }, 0);
  }
  for (std::int64_t length = request.seq_len / 2; length >= 512; length /= 2) {
    Request changed = request;
    changed.seq_len = length;
    if (ways.try_one(changed, fmt::format("sequence {} instead of {}", length, request.seq_len),
                     fmt::format("--seq-len {}", length))) {
      break;
    }
  }
  const std::int64_t joined = nvlink_gpus(profile.cluster);
  const std::int64_t most = profile.cluster.nics_per_node > 0 ? kMostGpus : joined;
  for (std::int64_t gpus = 2 * request.gpus; gpus <= most; gpus *= 2) {
    Request changed = request;
    changed.gpus = gpus;
    if (ways.try_one(changed, fmt::format("{} more GPUs ({})", gpus - request.gpus, gpus),
                     fmt::format("--gpus {}", gpus))) {
      break;
    }
  }
}

void change_arithmetic(Ways& ways) {
  const Request& request = ways.request();
  if (request.moment_dtype.value_or(DType::kFp32) == DType::kFp32 && !request.allow_bf16_moments) {
    Request changed = request;
    changed.moment_dtype = DType::kBf16;
    ways.try_one(changed, "bf16 moments (changes the arithmetic)", "--moment-dtype bf16");
  }
  if (!request.parallel.optimizer && request.allowed_optimizers.empty()) {
    Request changed = request;
    changed.parallel.optimizer = Optimizer::kAdamw8bit;
    ways.try_one(changed, "8-bit AdamW (changes the arithmetic)", "--optimizer adamw-8bit");
  }
}

}  // namespace

Advice advise(ModelParallelSearch& search, const Model& model,
              const std::vector<Scenario>& scenarios, const Request& request,
              const SearchOptions& options, std::size_t count) {
  Advice advice;
  if (const std::optional<Overshoot> nearest = search.nearest())
    advice.closest = search.judge({nearest->plan}).front();
  Ways ways(model, scenarios, request, options);
  free_knobs(ways);
  change_job(ways, scenarios.front().profile, options.criteria.headroom);
  change_arithmetic(ways);
  advice.ways = std::move(ways).cheapest(count);
  return advice;
}

}  // namespace shardwright::tuner
