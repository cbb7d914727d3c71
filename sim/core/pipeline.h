// SPDX-License-Identifier: Apache-2.0
// Pipeline parallelism as a plan says it: schedules, what a stage does (Action), and the shape.
//
// A pipeline in numbers, and where its chunks lie in the model: which stage gives a chunk its input
// and takes its output follows from the schedule's facts.
//
// Read next: sim/schedules/stage_actions.h (what a stage runs when), sim/pipeline/recurrence.h
// (when that is).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/base/words.h"

namespace shardwright {

// What a stage of a pipeline runs: passes of its chunks, one micro-batch at a time.
//
// Kinds and letters are those of PyTorch's pipelining IR
// (torch/distributed/pipelining/schedules.py, _ComputationType): F forward, B both gradients of
// backward, I the gradient of the input alone, W that of the weights.

enum class PassKind : std::uint8_t {
  kForward,        // F
  kBackward,       // B
  kBackwardInput,  // I: what the stage before waits for
  kBackwardWeight  // W
};

constexpr char letter_of(PassKind kind) {
  return "FBIW"[static_cast<int>(kind)];
}
/// The pass makes the gradient of its input.
constexpr bool makes_input_gradient(PassKind kind) {
  return kind == PassKind::kBackward || kind == PassKind::kBackwardInput;
}
/// The pass makes the gradients of its weights, and what forward kept may go.
constexpr bool makes_weight_gradient(PassKind kind) {
  return kind == PassKind::kBackward || kind == PassKind::kBackwardWeight;
}

struct Action {
  PassKind kind = PassKind::kForward;
  /// This action and the next one run as one block in which communication of one hides behind
  /// computation of the other (OVERLAP_F_B).
  bool overlaps_next = false;
  std::int16_t chunk = 0;  // of the stage
  std::int32_t micro_batch = 0;
  bool operator==(const Action&) const = default;
};

/// In the order in which the host of a stage issues them.
using Actions = std::vector<Action>;

// The pipeline schedules, and what everybody outside sim/schedules may know about one: where its
// chunks lie in the model, what it asks of stages and micro-batches, who can run it. Flags, checks,
// search, cost and exports ask here; the order of a stage's passes stands in its file alone.
//
// The list is pipeline_schedules.def; CONTRIBUTING.md says how to add to it.

enum class PipelineKind : std::uint8_t {
#define PIPELINE_SCHEDULE(id, ...) id,
#include "sim/core/pipeline_schedules.def"
#undef PIPELINE_SCHEDULE
};
inline constexpr int kPipelineKinds = 0
#define PIPELINE_SCHEDULE(...) +1
#include "sim/core/pipeline_schedules.def"
#undef PIPELINE_SCHEDULE
    ;

/// Which part of the model chunk c of stage s is, of p stages.
enum class ChunkOrder : std::uint8_t {
  kLoop,     // part s + c p: behind the last stage the next chunk begins on the first one
  kV,        // parts s and 2 p - 1 - s: the second chunks lead back to the first stage
  kBothWays  // parts s and p - 1 - s: two copies of the model, half of the micro-batches each
};

/// How neighbours stand still for transfers, with software whose transfers block.
enum class BlockingTransfers : std::uint8_t {
  kNever,   // software overlaps this schedule's transfers
  kEach,    // for every transfer
  kBatched  // an output and the gradient that comes back for another one meet in one transfer
};

/// PipelineInfo::chunks of a schedule that takes as many as the plan has virtual stages, at
/// least 2.
inline constexpr std::int32_t kVirtualStages = 0;

struct PipelineInfo {
  PipelineKind id = PipelineKind::kGpipe;
  std::string_view name = {};
  ChunkOrder order = ChunkOrder::kLoop;
  std::int32_t chunks = 1;  // of a stage
  /// Backward is input gradients (I) and weight gradients (W) apart, at least of some passes.
  bool splits_backward = false;
  /// Micro-batches run a chunk in groups of at least as many as there are stages, the last group
  /// too.
  bool groups_micro_batches = false;
  /// Forward passes of every stage stand beside backward passes of micro-batches that do not wait
  /// for them, so that one can hide the other's communication.
  bool pairs_passes = false;
  std::int32_t stage_multiple = 1, micro_batch_multiple = 1;
  std::int32_t micro_batches_per_stage = 0;  // of the step, at least
  BlockingTransfers blocking = BlockingTransfers::kNever;
  /// With many micro-batches all but the first and last repeat the same passes.
  bool has_steady_state = true;
  /// Of stages whose chunks are alike, and that receive and send alike, none holds more than one
  /// before it.
  bool memory_falls = false;
  std::string_view pytorch = {};  // its name in torch.distributed.pipelining; empty: not there

  bool takes_virtual_stages() const { return chunks == kVirtualStages; }
};

inline constexpr std::array<PipelineInfo, kPipelineKinds> kPipelineInfos = {{
#define PIPELINE_SCHEDULE(enumerator, label, writer, ...) \
  {.id = PipelineKind::enumerator, .name = label, __VA_ARGS__},
#include "sim/core/pipeline_schedules.def"
#undef PIPELINE_SCHEDULE
}};

template <>
inline constexpr std::array<std::string_view, kPipelineKinds> kWords<PipelineKind> = {
#define PIPELINE_SCHEDULE(id, name, ...) name,
#include "sim/core/pipeline_schedules.def"
#undef PIPELINE_SCHEDULE
};

constexpr const PipelineInfo& info_of(PipelineKind kind) {
  return kPipelineInfos[static_cast<std::size_t>(kind)];
}

/// The names of those that `has` is true of: "gpipe, 1f1b or zbv".
std::string pipeline_schedules_with(bool (*has)(const PipelineInfo&));

struct PipelineShape {
  PipelineKind kind = PipelineKind::kOneForwardOneBackward;
  std::int32_t stages = 1;
  std::int32_t chunks = 1;         // of a stage
  std::int32_t micro_batches = 1;  // of the step
  std::int32_t group = 0;          // where they are grouped: that run a chunk in a row; 0: stages

  const PipelineInfo& info() const { return info_of(kind); }
  /// Micro-batches that pass a chunk.
  std::int32_t passes() const {
    return info().order == ChunkOrder::kBothWays ? micro_batches / 2 : micro_batches;
  }
  std::int32_t group_size() const { return group > 0 ? group : stages; }
  /// Stages hold chunks from all over the model, so a micro-batch goes round them several times.
  bool interleaves() const { return info().order == ChunkOrder::kLoop && chunks > 1; }
  bool operator==(const PipelineShape&) const = default;
};

/// Throws Error with one sentence where the schedule does not exist for these numbers: for other
/// chunks than its own (interleaving needs several), other multiples of stages or micro-batches, or
/// a group of fewer micro-batches than stages (Megatron's rule: with a smaller one the stages wait
/// for one another for ever).
void check_shape(const PipelineShape& shape);

struct ChunkPlace {
  std::int32_t stage = 0;
  std::int32_t chunk = 0;
  bool operator==(const ChunkPlace&) const = default;
};

/// Of a list that holds the chunks of all stages, stage after stage.
inline std::size_t place_index(const PipelineShape& shape, ChunkPlace at) {
  const auto chunks = static_cast<std::size_t>(shape.chunks);
  return static_cast<std::size_t>(at.stage) * chunks + static_cast<std::size_t>(at.chunk);
}

/// The chunk whose output is this chunk's input; nothing for the chunk with the embedding.
std::optional<ChunkPlace> previous_chunk(const PipelineShape& shape, ChunkPlace at);
/// The chunk that takes this chunk's output; nothing for the chunk with the head.
std::optional<ChunkPlace> next_chunk(const PipelineShape& shape, ChunkPlace at);
/// Position of a chunk in the model, 0 being the one with the embedding.
std::int32_t model_part(const PipelineShape& shape, ChunkPlace at);
/// What a chunk has of a list by model part.
template <typename T>
const T& of_chunk(const std::vector<T>& parts, const PipelineShape& shape, ChunkPlace at) {
  return parts[static_cast<std::size_t>(model_part(shape, at))];
}
/// Number of positions: stages * chunks, or stages where each stage holds two copies.
std::int32_t model_parts(const PipelineShape& shape);

}  // namespace shardwright
