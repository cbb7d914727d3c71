// SPDX-License-Identifier: Apache-2.0
// The operations inside one chunk's passes of one micro-batch (timeline.h).
#pragma once

#include "sim/pipeline/timeline.h"

namespace shardwright::sim {

/// Fills `operations` of every stage: of the chunk with the head where it has it, else of its first
/// one, and of the micro-batch in the middle of the step.
void open_chunks(ChunkTimer& timer, PipelineRecord& record, ParallelTimeline& timeline);

}  // namespace shardwright::sim
