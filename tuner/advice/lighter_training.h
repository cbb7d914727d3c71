// SPDX-License-Identifier: Apache-2.0
// Ways out for who keeps his GPUs and his sequences: optimizer states in 8 bits or in the host's
// memory, then adapters of low rank (LoRA), over quantized weights (QLoRA) where these are needed.
//
// The first group trains every weight, the second does not, so it is tried only where the first
// leads nowhere. Each way is a search of its own (advice.h tells them).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tuner/advice/advice.h"
#include "tuner/search/best_of_requests.h"

namespace shardwright::tuner {

/// Rank of adapters where nobody gives one: that of the QLoRA and Unsloth recipes.
inline constexpr std::int64_t kUsualLoraRank = 16;

/// Sequences of a step of fine-tuning where nobody says: 16, as in QLoRA's recipes, or the next
/// multiple of `gpus`.
std::int64_t fine_tuning_batch(std::int64_t gpus);

/// Whether only adapters are trained then.
bool trains_adapters(const Way& way);

/// In the order in which to tell them: what trains every weight on these GPUs, then adapters where
/// `gpus` are a node's at most, then more GPUs; each group by GPU time a token.
void rank_ways(std::vector<Way>& ways, std::int64_t gpus);

/// What the software can be told of a request; a request that it cannot be told throws Error.
using Telling = std::function<std::vector<AskedPlans>(const Request&)>;

/// Of a request of which nothing fits, on the software of `scenarios`; by GPU time a token.
std::vector<Way> lighter_ways(const Model& model, const std::vector<Scenario>& scenarios,
                              const Request& request, const SearchOptions& options,
                              const Telling& telling);

}  // namespace shardwright::tuner
