// SPDX-License-Identifier: Apache-2.0
#include "tuner/size/size_batches.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "sim/core/base/error.h"
#include "sim/core/units.h"
#include "tuner/runs/run_cost.h"

namespace shardwright::tuner {

namespace {

constexpr double kNearlyAll = 0.95;  // of the largest batch that replicas share
constexpr double kCapStep = 1.35;    // from one cap to the next
constexpr double kPlenty = 8;  // sequences a GPU, of which a larger batch makes nothing faster

/// Sequences of a GPU that make whole micro-batches of several sizes.
std::int64_t whole_share(std::int64_t each) {
  if (each >= 8) return each - each % 4;
  return each >= 3 ? each - each % 2 : each;
}

}  // namespace

std::vector<std::int64_t> plain_batches(double cap, std::int64_t unit) {
  const auto each = static_cast<std::int64_t>(cap) / unit;
  if (each == 0) return {unit};
  std::vector<std::int64_t> batches{whole_share(each) * unit};
  if (static_cast<double>(each) < kPlenty) batches.push_back((each + 1) * unit);
  return batches;
}

std::vector<std::int64_t> shared_batches(double cap, std::int64_t gpus, std::int64_t most_ranks) {
  std::vector<std::int64_t> batches;
  std::int64_t fewest = gpus;  // replicas
  for (std::int64_t ranks = 1; ranks <= std::min(most_ranks, gpus); ++ranks) {
    if (gpus % ranks != 0) continue;
    const std::int64_t replicas = fewest = gpus / ranks;
    const std::int64_t most = static_cast<std::int64_t>(cap) / replicas * replicas;
    if (most == 0) continue;
    const bool served = std::any_of(batches.begin(), batches.end(), [&](std::int64_t batch) {
      return batch % replicas == 0 &&
             static_cast<double>(batch) >= kNearlyAll * static_cast<double>(most);
    });
    if (!served) batches.push_back(most);
  }
  if (batches.empty()) batches.push_back(fewest);
  std::sort(batches.rbegin(), batches.rend());
  return batches;
}

std::string batch_contradiction(const Request& fixed, std::int64_t gpus) {
  if (!fixed.global_batch || *fixed.global_batch % gpus == 0) return {};
  if (*fixed.global_batch < gpus) {
    return fmt::format("a global batch of {} sequences is too small for {} GPUs",
                       *fixed.global_batch, gpus);
  }
  const std::int64_t below = *fixed.global_batch / gpus * gpus;
  return fmt::format("a global batch of {} sequences is no multiple of {} GPUs, {} or {} would be",
                     *fixed.global_batch, gpus, below, below + gpus);
}

double uncounted_tokens(const RunConditions& conditions) {
  return std::max(kUsualOverhead * conditions.critical_tokens, conditions.own_published_tokens);
}

std::vector<double> batch_caps(const SizingJob& job, std::int64_t gpus) {
  const auto length = static_cast<double>(job.fixed.seq_len);
  // Powers of two of GPUs share the usual batch, a power of two of sequences.
  const bool even = is_power_of_two(gpus);
  const double usual =
      std::max(1.0, (even ? job.run.usual_tokens : uncounted_tokens(job.run)) / length);
  const double largest = job.run.published_tokens / length;
  if (usual >= kPlenty * static_cast<double>(gpus) || largest <= usual) return {usual};
  std::vector<double> caps;
  for (double cap = usual; cap * kCapStep <= largest; cap *= kCapStep) caps.push_back(cap);
  caps.push_back(largest);
  return caps;
}

}  // namespace shardwright::tuner
