// SPDX-License-Identifier: Apache-2.0
// The timeline of a pipeline: when every stage does what, one rank a stage.
//
// The step is walked again with every micro-batch kept (pipeline_step.h). Each pass holds the
// operations that the engine ran in it, where it stands in the step; a receive runs from when the
// stage before has made its output until it has arrived; the tail of the step follows. Of a step of
// very many operations those of the micro-batches in its middle are there, and all passes.
#pragma once

#include "sim/pipeline/pipeline_step.h"
#include "sim/pipeline/step_program.h"

namespace shardwright::sim {

/// Fills `timeline` from what `step` was made of; its spans refer to the stages of `program`.
/// `iteration_s` is its length with what machines lose at that scale.
void write_stage_timeline(const SimulatedStep& step, double iteration_s, ChunkTimer& timer,
                          PipelineRecord& record, const StepProgram& program, Timeline& timeline);

}  // namespace shardwright::sim
