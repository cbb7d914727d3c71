// SPDX-License-Identifier: Apache-2.0
// What a rank holds from step to step: the kinds of memory that a strategy may keep beside the
// activations. Schedules list them with their sizes, memory prediction adds them up, the executor
// allocates them.
#pragma once

#include <cstdint>
#include <string_view>

#include "sim/core/units.h"

namespace shardwright {

/// What memory is used for, as predictions report it.
enum class MemoryCategory : std::uint8_t {
  kParameters,
  kMaster,
  kGradients,
  kOptimizer,
  kGatherBuffers,
  kGradientBuffers,
  kActivations,
  kLoss,
  kWorkspace
};
inline constexpr int kMemoryCategories = 9;
std::string_view name_of(MemoryCategory category);

/// In the order in which they are allocated where a caching allocator does it.
enum class Persistent : std::uint8_t {
  kMaster,                  // parameters that the optimizer updates: the own share, or all
  kMoments,                 // first and second of Adam, of the same parameters
  kWholeParameters,         // in the compute type; the share that is the master apart
  kShardedParameters,       // the own share in the compute type: what is gathered
  kWholeGradients,          // sums over micro-batches
  kShardedGradients,        // likewise, of the own share
  kRotatingWeights,         // gathered units, in turn
  kGatheredWeights,         // gathered units, a place for each
  kTiedEmbeddingWeights,    // gathered embedding that the head uses, too
  kNormWeights,             // gathered norms of all layers
  kRotatingGradients,       // what backward writes, units in turn
  kTiedEmbeddingGradients,  // the head's part waits there for the embedding's, or is summed
  kNormGradients,           // of the norms of all layers
  kReductionBuffer,         // a unit's gradients in the type of the reduction
  kReducedShard,            // the own share of a reduction before it is added to the sum
  kGradientBuckets,         // of a framework
  kAllReduceBuckets,        // likewise
  kOptimizerPieces,         // of what the host keeps of the optimizer's state, on its way
  kWorkspace                // sim/core/workspace.h
};
inline constexpr int kPersistentKinds = 19;
std::string_view name_of(Persistent kind);
MemoryCategory category_of(Persistent kind);

/// A tensor that outlives the step: it is there before the first operation and after the last.
struct PersistentTensor {
  Persistent kind = Persistent::kMaster;
  Bytes bytes = 0;
  MemoryCategory category() const { return category_of(kind); }
};

}  // namespace shardwright
