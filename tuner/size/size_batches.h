// SPDX-License-Identifier: Apache-2.0
// The batches that `size` may choose for a number of GPUs.
//
// A batch is shared evenly by the replicas of a plan, so each number of replicas has its own
// largest batch below a cap. The least set is taken in which every number of replicas finds one of
// at least 95 % of its largest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/parallelism.h"
#include "tuner/search/request.h"
#include "tuner/size/sizing.h"

namespace shardwright::tuner {

/// Sequences of a step that data parallelism alone shares, multiples of `unit` (GPUs x micro-batch
/// x accumulation, as far as they are fixed): below `cap`, so many each that they make whole
/// micro-batches, and where each has few, one more.
std::vector<std::int64_t> plain_batches(double cap, std::int64_t unit);

/// Sequences of a step for plans in which up to `most_ranks` GPUs share a replica.
std::vector<std::int64_t> shared_batches(double cap, std::int64_t gpus,
                                         std::int64_t most_ranks = 1024);

/// Tokens of a step that is chosen, beyond which more tokens are counted: what needs 20 % more than
/// tiny steps, or what a published training of the very model took.
double uncounted_tokens(const RunConditions& conditions);

/// Caps in sequences, least first: the usual batch and, where that leaves a GPU few sequences,
/// steps from it to the largest that published trainings took; beyond the usual one more tokens are
/// counted.
std::vector<double> batch_caps(const SizingJob& job, std::int64_t gpus);

/// Why `gpus` cannot share the batch that the user fixed; empty when they can.
std::string batch_contradiction(const Request& fixed, std::int64_t gpus);

// What one cluster and number of GPUs is offered: plans of several batches and frameworks.

/// A larger batch or other software has to make the whole run this much shorter.
inline constexpr double kWorth = 1.02;

/// What competes for one size: the fastest whole run so far, and that of data parallelism alone.
struct SizeCandidates {
  std::optional<Sized> best, plain;
  std::optional<LeftOut> refusal;  // of data parallelism
  std::optional<Request> unfit;    // that was refused because nothing fits, not yet by how much
  std::string parallel_why;        // no plan that is model-parallel

  /// Later ones are larger batches or other software: they have to be worth it.
  void enter(Sized option) {
    const bool wins = !best || option.cost.days * kWorth < best->cost.days;
    if (!divides(option) && (!plain || option.cost.days < plain->cost.days)) plain = option;
    if (wins) best = std::move(option);
  }
  static bool divides(const Sized& option) { return features_of(option.prediction.plan).any(); }
};

}  // namespace shardwright::tuner
