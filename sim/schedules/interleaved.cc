// SPDX-License-Identifier: Apache-2.0
// Interleaved 1F1B (Narayanan et al. 2021; Megatron-LM core/pipeline_parallel/schedules.py,
// forward_backward_pipelining_with_interleaving): a stage holds several chunks from all over the
// model, which divides the bubble by their number.
//
// Groups of micro-batches run chunk after chunk, backward with the chunks reversed
// (get_schedule_table); a pass of one chunk is a virtual micro-batch.
#include <algorithm>

#include "sim/schedules/stage_actions.h"

namespace shardwright::sim {
namespace {

struct VirtualMicroBatch {
  std::int32_t chunk = 0, micro_batch = 0;
};

/// The k-th one forward.
VirtualMicroBatch virtual_micro_batch(const PipelineShape& shape, std::int32_t k) {
  const std::int32_t group = shape.group_size();
  const std::int32_t round = k / (group * shape.chunks);
  const std::int32_t first = round * group;
  const std::int32_t size = std::min(group, shape.micro_batches - first);
  const std::int32_t inside = k - round * group * shape.chunks;
  return {inside / size, first + inside % size};
}

}  // namespace

void write_interleaved(const PipelineShape& shape, std::int32_t stage, ActionWriter& w) {
  const auto forward = [&](std::int32_t k) {
    const VirtualMicroBatch at = virtual_micro_batch(shape, k);
    w.forward(at.chunk, at.micro_batch);
  };
  const auto backward = [&](std::int32_t k) {
    const VirtualMicroBatch at = virtual_micro_batch(shape, k);
    w.backward(shape.chunks - 1 - at.chunk, at.micro_batch);
  };
  const std::int32_t total = shape.micro_batches * shape.chunks;
  const std::int32_t warm_up =
      std::min(2 * (shape.stages - stage - 1) + (shape.chunks - 1) * shape.group_size(), total);
  for (std::int32_t k = 0; k < warm_up; ++k) forward(k);
  for (std::int32_t k = warm_up; k < total; ++k) {
    forward(k);
    backward(k - warm_up);
  }
  for (std::int32_t k = total - warm_up; k < total; ++k) backward(k);
}

}  // namespace shardwright::sim
