// SPDX-License-Identifier: Apache-2.0
#include "sim/schedules/stage_actions.h"

#include <algorithm>
#include <array>

namespace shardwright::sim {
namespace {

using Write = void (*)(const PipelineShape&, std::int32_t, ActionWriter&);

constexpr std::array<Write, kPipelineKinds> kWriters = {
#define PIPELINE_SCHEDULE(id, name, writer, ...) &writer,
#include "sim/core/pipeline_schedules.def"
#undef PIPELINE_SCHEDULE
};

}  // namespace

Actions stage_actions(const PipelineShape& shape, std::int32_t stage) {
  Actions actions;
  actions.reserve(static_cast<std::size_t>(3 * shape.chunks) *
                  static_cast<std::size_t>(shape.micro_batches));
  ActionWriter writer(actions);
  kWriters[static_cast<std::size_t>(shape.kind)](shape, stage, writer);
  return actions;
}

std::int32_t peak_in_flight(const Actions& actions) {
  std::int32_t held = 0, peak = 0;
  for (const Action& action : actions) {
    if (action.kind == PassKind::kForward) peak = std::max(peak, ++held);
    if (makes_weight_gradient(action.kind)) --held;
  }
  return peak;
}

}  // namespace shardwright::sim
