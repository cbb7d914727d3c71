// SPDX-License-Identifier: Apache-2.0
// Timelines of model-parallel plans as a Chrome trace, which Perfetto (ui.perfetto.dev) opens.
//
// One process for every stage, in order. Its tracks: the stage, with passes, blocking transfers,
// labelled bubbles and the tail of the step; reductions of gradients; transfers that overlap, each
// direction as many tracks as are under way at once; and the operations of the micro-batch that is
// opened up, computing and communicating. Arrows lead the opened micro-batch from pass to pass.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/pipeline/timeline.h"

namespace shardwright::sim {

struct TitledTimeline {
  std::string title;  // "predicted, distributed-optimizer"
  const ParallelTimeline* timeline;
};

/// `notes` become the trace's metadata (otherData). Throws Error when the file cannot be written.
void write_stage_trace(const std::filesystem::path& path, std::span<const TitledTimeline> timelines,
                       const std::vector<std::pair<std::string, std::string>>& notes = {});

/// "layers 0 to 9, 40 to 49 and the head": what a stage holds.
std::string stage_content(const ParallelTimeline& timeline, std::int32_t stage);

/// "forward 12", with chunks "forward 12, chunk 3".
std::string slice_name(const ParallelTimeline& timeline, const StageSlice& slice);

/// "all_gather, tensor", "down_projection": what an opened operation is called.
std::string operation_name(const OperationSlice& slice);

}  // namespace shardwright::sim
