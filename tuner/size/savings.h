// SPDX-License-Identifier: Apache-2.0
// What one strategy saves over another at equal throughput, in GPUs and dollars a month.
//
// A fleet of G GPUs trains with the slower strategy at s tokens per second and GPU. The faster one
// at f needs G s / f GPUs for the same throughput, so it saves G (1 - s / f); a month is 730 hours.
// Each strategy has its own best plan, found on the same GPUs and with the same sequences per GPU.
// Throughput per GPU hardly depends on the number of GPUs, but a little it does, and GPUs come in
// nodes: so the fewest whole nodes on which the faster strategy, tuned anew, is predicted to be no
// slower are found, too. This is the computation behind the YaFSDP announcement (about 150 GPUs and
// 0.5 to 1.5 million dollars a month for a 70B pre-training, June 2024).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/core/model.h"
#include "sim/predict.h"
#include "tuner/size/sizing.h"

namespace shardwright::tuner {

inline constexpr double kHoursPerMonth = 730;

struct EqualThroughput {
  double gpus_needed = 0;                 // by the faster strategy, G s / f
  double gpus_saved = 0;                  // G - gpus_needed
  std::optional<double> usd_per_month{};  // saved; none: price unknown
};

/// The arithmetic above. `usd_per_gpu_hour` 0: unknown.
EqualThroughput equal_throughput(double gpus, double faster_tokens_per_gpu_s,
                                 double slower_tokens_per_gpu_s, double usd_per_gpu_hour);

struct Savings {
  std::size_t offer = 0;
  std::int64_t gpus = 0;  // of the fleet
  sim::Prediction faster, slower;
  EqualThroughput equal;
  std::int64_t whole_node_gpus = 0;    // the fewest whole nodes of the faster that suffice
  double whole_node_tokens_per_s = 0;  // predicted there
  bool executed_alike = false;         // the stack runs both strategies by the same schedule
};

/// The strategies' best plans on `gpus` of this offer. Throws Error when one has none that fits, or
/// when both are the same.
Savings compare_strategies(const Model& model, const std::vector<Offer>& offers, std::size_t offer,
                           const SizingJob& job, std::int64_t gpus,
                           const std::array<Strategy, 2>& strategies);

}  // namespace shardwright::tuner
