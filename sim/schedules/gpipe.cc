// SPDX-License-Identifier: Apache-2.0
// GPipe (Huang et al. 2019): all micro-batches forward, then all backward.
// A stage keeps the activations of all of them.
#include "sim/schedules/stage_actions.h"

namespace shardwright::sim {

void write_gpipe(const PipelineShape& shape, std::int32_t, ActionWriter& w) {
  for (std::int32_t i = 0; i < shape.micro_batches; ++i) w.forward(0, i);
  for (std::int32_t i = shape.micro_batches; i-- > 0;) w.backward(0, i);
}

}  // namespace shardwright::sim
