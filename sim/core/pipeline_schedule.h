// SPDX-License-Identifier: Apache-2.0
// The pipeline schedules, and what everybody outside sim/schedules may know about one: where its
// chunks lie in the model, what it asks of stages and micro-batches, who can run it. Flags, checks,
// search, cost and exports ask here; the order of a stage's passes stands in its file alone.
//
// The list is pipeline_schedules.def; CONTRIBUTING.md says how to add to it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace shardwright {

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
  bool megatron = false;          // Megatron-LM has it

  bool takes_virtual_stages() const { return chunks == kVirtualStages; }
};

inline constexpr std::array<PipelineInfo, kPipelineKinds> kPipelineInfos = {{
#define PIPELINE_SCHEDULE(enumerator, label, writer, ...) \
  {.id = PipelineKind::enumerator, .name = label, __VA_ARGS__},
#include "sim/core/pipeline_schedules.def"
#undef PIPELINE_SCHEDULE
}};

constexpr const PipelineInfo& info_of(PipelineKind kind) {
  return kPipelineInfos[static_cast<std::size_t>(kind)];
}

/// The names of those that `has` is true of: "gpipe, 1f1b or zbv".
std::string pipeline_schedules_with(bool (*has)(const PipelineInfo&));

}  // namespace shardwright
