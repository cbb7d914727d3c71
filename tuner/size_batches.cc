// SPDX-License-Identifier: Apache-2.0
#include "tuner/size_batches.h"

#include <fmt/core.h>

#include <algorithm>

namespace shardwright::tuner {
namespace {

constexpr double kNearlyAll = 0.95;  // of the largest batch that replicas share
constexpr double kPlenty = 8;  // sequences a GPU, of which a larger batch makes nothing faster

}  // namespace

std::int64_t plain_batch(double cap, std::int64_t unit) {
  const auto most = static_cast<std::int64_t>(cap) / unit;
  return std::max(most, std::int64_t{1}) * unit;
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

std::vector<double> batch_caps(const SizingJob& job, std::int64_t gpus) {
  const auto length = static_cast<double>(job.fixed.seq_len);
  const double usual = std::max(1.0, job.run.usual_tokens / length);
  const double largest = job.run.published_tokens / length;
  if (usual >= kPlenty * static_cast<double>(gpus) || largest <= usual) return {usual};
  return {usual, largest};
}

}  // namespace shardwright::tuner
