// SPDX-License-Identifier: Apache-2.0
// Ways out for who keeps his GPUs and his sequences and need not train every weight: adapters of
// low rank (LoRA), over quantized weights (QLoRA). Each way is what the changed request is answered
// with; advice.h tells the others.
#pragma once

#include <cstdint>
#include <vector>

#include "tuner/advice/advice.h"

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

/// Of a request of which nothing fits.
std::vector<Way> adapter_ways(const Request& request, const Answering& answering);

}  // namespace shardwright::tuner
