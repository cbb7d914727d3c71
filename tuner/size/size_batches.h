// SPDX-License-Identifier: Apache-2.0
// The batches that `size` may choose for a number of GPUs.
//
// A batch is shared evenly by the replicas of a plan, so each number of replicas has its own
// largest batch below a cap. The least set is taken in which every number of replicas finds one of
// at least 95 % of its largest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

}  // namespace shardwright::tuner
