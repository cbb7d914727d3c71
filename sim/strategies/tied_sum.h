// SPDX-License-Identifier: Apache-2.0
// One gradient of a table that is embedding and head where its two uses are summed for themselves:
// behind a step's reductions, before the norm. Stages that have a copy each exchange their sums and
// add them up, so that the copies stay equal (Megatron's all-reduce over the embedding group); a
// rank with both uses adds the head's to the embedding's.
#pragma once

namespace shardwright::sim {

class StepWriter;

/// Writes the blocks of a chunk, as many as it needs.
void write_tied_sum(StepWriter& w);

}  // namespace shardwright::sim
