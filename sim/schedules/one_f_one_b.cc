// SPDX-License-Identifier: Apache-2.0
// 1F1B (PipeDream-flush; Megatron-LM core/pipeline_parallel/schedules.py,
// forward_backward_pipelining_without_interleaving): as GPipe, but a stage runs the backward pass
// of a micro-batch as soon as it comes back, so stage s of p keeps at most p - s of them.
#include <algorithm>

#include "sim/schedules/stage_actions.h"

namespace shardwright::sim {

void write_1f1b(const PipelineShape& shape, std::int32_t stage, ActionWriter& w) {
  const std::int32_t m = shape.micro_batches;
  const std::int32_t warm_up = std::min(shape.stages - stage - 1, m);
  for (std::int32_t i = 0; i < warm_up; ++i) w.forward(0, i);
  for (std::int32_t i = warm_up; i < m; ++i) {
    w.forward(0, i);
    w.backward(0, i - warm_up);
  }
  for (std::int32_t i = m - warm_up; i < m; ++i) w.backward(0, i);
}

}  // namespace shardwright::sim
