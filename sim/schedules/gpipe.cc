// SPDX-License-Identifier: Apache-2.0
// GPipe (Huang et al. 2019): all micro-batches forward, then all backward.
//
// Both ways in ascending order, as PyTorch's ScheduleGPipe runs them: with equal stages the
// makespan is that of the descending order, and gradients add up in the order of one rank that
// accumulates the same micro-batches. A stage keeps the activations of all of them.
#include "sim/schedules/stage_actions.h"

namespace shardwright::sim {

void write_gpipe(const PipelineShape& shape, std::int32_t, ActionWriter& w) {
  for (std::int32_t i = 0; i < shape.micro_batches; ++i) w.forward(0, i);
  for (std::int32_t i = 0; i < shape.micro_batches; ++i) w.backward(0, i);
}

}  // namespace shardwright::sim
