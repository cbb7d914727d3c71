// SPDX-License-Identifier: Apache-2.0
#include "tuner/search/objective.h"

#include <algorithm>
#include <array>

namespace shardwright::tuner {

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

double tokens_per_step(const Plan& plan) {
  return static_cast<double>(plan.seq_len) * static_cast<double>(plan.micro_batch) *
         static_cast<double>(plan.grad_accum) *
         static_cast<double>(plan.gpus / plan.parallel.replica());
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
