// SPDX-License-Identifier: Apache-2.0
// What each stage of a pipeline does in one step, in the order in which its host issues it.
//
// Each schedule has one function that writes the compute actions of a stage: whom a chunk
// receives from and sends to follows from its place (sim/core/pipeline.h), how long a pass
// takes is put to it by sim/pipeline/recurrence.h. A line of sim/core/pipeline_schedules.def names
// the function that writes.
#pragma once

#include <cstdint>

#include "sim/core/pipeline.h"

namespace shardwright::sim {

/// Appends actions to a stage's list.
class ActionWriter {
 public:
  explicit ActionWriter(Actions& out) : out_(out) {}
  void forward(std::int32_t chunk, std::int32_t micro) { add(PassKind::kForward, chunk, micro); }
  void backward(std::int32_t chunk, std::int32_t micro) { add(PassKind::kBackward, chunk, micro); }
  void backward_input(std::int32_t chunk, std::int32_t micro) {
    add(PassKind::kBackwardInput, chunk, micro);
  }
  void backward_weight(std::int32_t chunk, std::int32_t micro) {
    add(PassKind::kBackwardWeight, chunk, micro);
  }
  /// The last action and the one that follows run as one block.
  void overlap_last() { out_.back().overlaps_next = true; }

 private:
  void add(PassKind kind, std::int32_t chunk, std::int32_t micro) {
    out_.push_back({kind, false, static_cast<std::int16_t>(chunk), micro});
  }
  Actions& out_;
};

/// The functions that sim/core/pipeline_schedules.def names.
#define PIPELINE_SCHEDULE(id, name, writer, ...) \
  void writer(const PipelineShape& shape, std::int32_t stage, ActionWriter& w);
#include "sim/core/pipeline_schedules.def"
#undef PIPELINE_SCHEDULE

/// The actions of `stage`. `shape` must have passed check_shape.
Actions stage_actions(const PipelineShape& shape, std::int32_t stage);

}  // namespace shardwright::sim
