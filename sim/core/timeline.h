// SPDX-License-Identifier: Apache-2.0
// What happened, or will happen: spans keyed by operation id, and a memory curve. The one type for
// predicted and measured steps, so that they can be subtracted (compare) and fitted (calibrate).
//
// Of a pipeline a predicted timeline has one rank for each stage, and says of each, beside its
// operations, which pass it runs when and what it waits for in between: `passes` of a rank follow
// one another without a gap from 0 to the end of the step. A pair of passes that runs as one block
// (DualPipe) is two of equal times.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/base/words.h"
#include "sim/core/schedule.h"
#include "sim/core/units.h"

namespace shardwright {

struct Span {
  OpId id = 0;  // operation of the schedule; -1: none (foreign kernels of imported traces)
  std::int32_t rank = 0;
  std::int32_t step = 0;
  std::uint8_t stream = 0;  // index into Timeline::streams
  Nanoseconds begin_ns = 0;
  Nanoseconds end_ns = 0;
  std::int32_t name = -1;  // index into Timeline::names
};

/// What a stage of a pipeline does: passes, in the order of PassKind, and what is between and after
/// them.
enum class StageWork : std::uint8_t {
  kForward,
  kBackward,
  kInputGradient,
  kWeightGradient,
  kDeferred,   // weight gradients of the head that wait for the flush
  kBubble,     // waits for other stages
  kTransfer,   // stands still for activations or gradients
  kReduction,  // waits for the reduction of gradients
  kOptimizer,
  kGather,  // of parameters, as far as nothing hides it
  kHost,
  kVariation  // of nodes
};
SHARDWRIGHT_WORDS(StageWork, kVariation, "forward", "backward", "input gradient", "weight gradient",
                  "deferred gradient", "bubble", "transfer", "gradient reduction", "optimizer",
                  "parameter gather", "host", "nodes vary");
inline constexpr std::size_t kStageWorks = 12;
constexpr bool is_pass(StageWork work) {
  return work <= StageWork::kWeightGradient;
}

struct PassSpan {
  StageWork work = StageWork::kBubble;
  std::int32_t rank = 0;
  std::int32_t step = 0;
  std::int32_t chunk = -1, micro_batch = -1;  // of passes
  Nanoseconds begin_ns = 0;
  Nanoseconds end_ns = 0;
};
/// "forward 12", of several chunks "forward 12, chunk 3".
std::string name_of(const PassSpan& span, bool with_chunk);

/// What a rank is in a pipeline.
struct StageOfRank {
  std::int32_t stage = 0;
  std::int32_t chunks = 1;
  std::string content;  // "layers 0 to 9, embedding"
};

struct MemorySample {
  Nanoseconds at_ns = 0;
  Bytes allocated_bytes = 0;
  Bytes reserved_bytes = 0;
};

struct Timeline {
  std::string source;  // "predicted" or "measured"
  std::vector<std::string> streams;
  std::vector<std::string> names;
  std::vector<Span> spans;  // ordered by begin within a rank
  std::vector<Span> host;   // what the host was doing: issuing the operation `id`, or waiting
  std::vector<MemorySample> memory;
  Nanoseconds step_ns = 0;  // length of one step
  // Of pipelines.
  std::map<std::int32_t, StageOfRank> stages;  // by rank
  std::vector<PassSpan> passes;                // in the order of begin within a rank
  std::vector<std::pair<std::size_t, std::size_t>> hand_overs;  // from pass to pass

  /// 0 where there is no pipeline.
  std::int32_t stage_count() const {
    std::int32_t count = 0;
    for (const auto& [rank, of] : stages) count = std::max(count, of.stage + 1);
    return count;
  }
  /// Likewise.
  std::int32_t stage_of(std::int32_t rank) const {
    const auto at = stages.find(rank);
    return at != stages.end() ? at->second.stage : 0;
  }
};

}  // namespace shardwright
