// SPDX-License-Identifier: Apache-2.0
// One step of a plan with pipeline parallelism: passes of chunks, timed by the engine
// (chunk_times.h), put in their places by the recurrence (recurrence.h).
//
// Ranks of one stage are alike, so a step has as many actors as stages. What gathers, reductions
// and the update add, the passes of the first and the last micro-batch show: a stage waits for
// gathers as far as the pipeline's fill does not hide them, and for reductions as far as the passes
// that follow do not. The norm of the gradient is the barrier at which all stages wait. What the
// pieces of the answer mean: compute and exposed communication are those of the busiest stage, the
// bubble is what it waits for others, and all of them add up to the step.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/model.h"
#include "sim/pipeline/chunk_times.h"
#include "sim/pipeline/joint_stages.h"
#include "sim/pipeline/recurrence.h"
#include "sim/pipeline/step_program.h"
#include "sim/program/layer_program.h"

namespace shardwright::sim {

struct StageTime {
  double compute_s = 0, exposed_s = 0, host_s = 0, optimizer_s = 0, bubble_s = 0;
};

/// A simulated step of any plan; without a pipeline it has one stage.
struct SimulatedStep {
  double step_s = 0;
  double bubble = 0;                    // share of the stages' time in the pipeline
  std::int32_t steady_state_after = 0;  // micro-batches that were simulated one by one
  std::int64_t busiest = 0;
  std::vector<ChunkContent> parts;  // by model_part()
  std::vector<StageTime> stages;
  double forward_s = 0, backward_s = 0;         // of the busiest stage
  double flops = 0;                             // that a rank executes, the mean of the stages
  double issued_s = 0;                          // by the host, of the busiest stage
  KernelTimes kernels;                          // of the same
  std::array<double, kCommGroups> exposed_s{};  // of the busiest stage
  CommunicationByGroup sent{};                  // a rank of the busiest stage
};

/// Reductions of gradients beside or after the last backward passes.
struct ReductionSpan {
  std::int32_t stage = 0;
  Nanoseconds begin_ns = 0, end_ns = 0;
};

/// What follows the passes of a stage.
struct StageTail {
  Nanoseconds deferred_ns = 0;   // gradients of the head that wait for the flush
  Nanoseconds end_ns = 0;        // gradients reduced, from the start of the step
  Nanoseconds reduction_ns = 0;  // of it beyond the last backward
  Nanoseconds tied_ns = 0;       // of it at its end, for a tied table
  Nanoseconds gather_ns = 0;     // of parameters, as far as nothing hides it
  Nanoseconds update_ns = 0;
  PassTime update;  // its parts
};

/// What a step was made of, for whoever draws it.
struct PipelineRecord {
  PipelineShape shape;
  PipelineTimes times;
  PipelineResult pipeline;       // with all of its spans
  std::vector<StageTail> tails;  // by stage
  std::vector<ReductionSpan> reductions;
  Nanoseconds reduced_ns = 0;       // when the last stage's gradients are summed
  Nanoseconds updated_ns = 0;       // update of the slowest stage
  std::vector<std::size_t> chunks;  // by model_part(): its place in `timed`
  std::deque<TimedChunk> timed;
};

/// Keeps what plans of one model and profile, which outlive it, share. Not thread-safe.
class PipelineSimulator {
 public:
  PipelineSimulator(Model&&, const profiles::Profile&, ProgramCache&) = delete;
  PipelineSimulator(const Model& model, const profiles::Profile& profile, ProgramCache& programs)
      : model_(model), profile_(profile), programs_(programs), timer_(profile) {}

  /// With a `record` every micro-batch is walked, however many there are. Throws Error where the
  /// schedule does not exist for the plan's numbers.
  SimulatedStep run(const Plan& plan, PipelineRecord* record = nullptr) {
    return run(plan, record, nullptr);
  }
  /// With kernels that vary; equal to run(plan) where their spread is 0.
  SimulatedStep run_varied(const Plan& plan, JointStages& joint) {
    return run(plan, nullptr, &joint);
  }
  ChunkTimer& timer() { return timer_; }

 private:
  struct Stages;
  SimulatedStep run(const Plan& plan, PipelineRecord* record, JointStages* joint);
  void time_chunks(const Plan& plan, const std::vector<ChunkContent>& parts);
  void show_lonely_passes(const Plan& plan, const PipelineShape& shape,
                          const std::vector<ChunkContent>& parts);
  void defer_head(const Plan& plan, const std::vector<ChunkContent>& parts);
  PipelineTimes pipeline_times(const Stages& stages, double message_bytes);
  StageTail stage_tail(const Plan& plan, const Stages& stages, std::int32_t stage,
                       const StageTimes& times, PipelineRecord* record);
  void reduce(const Stages& stages, std::int32_t stage, const StageTimes& times, StageTail& tail,
              PipelineRecord* record) const;
  PassTime gather(const Stages& stages, std::int32_t stage, const StageTimes& times);
  void finish(const Plan& plan, const Stages& stages, const PipelineResult& pipeline,
              const JointStages* joint, SimulatedStep& step, PipelineRecord* record);

  const Model& model_;
  const profiles::Profile& profile_;
  ProgramCache& programs_;
  ChunkTimer timer_;
  std::deque<TimedChunk> timed_;  // of the plan's distinct chunks, the first `distinct_`
  std::size_t distinct_ = 0;
  std::vector<std::size_t> chunk_of_;     // by model_part()
  std::vector<Nanoseconds> deferred_ns_;  // by distinct chunk, of the step
};

// The timeline of a pipeline: when every stage does what, one rank a stage.
//
// The step is walked again with every micro-batch kept (pipeline_step.h). Each pass holds the
// operations that the engine ran in it, where it stands in the step; a receive runs from when the
// stage before has made its output until it has arrived; the tail of the step follows. Of a step of
// very many operations those of the micro-batches in its middle are there, and all passes.

/// Fills `timeline` from what `step` was made of; its spans refer to the stages of `program`.
/// `iteration_s` is its length with what machines lose at that scale.
void write_stage_timeline(const SimulatedStep& step, double iteration_s, ChunkTimer& timer,
                          PipelineRecord& record, const StepProgram& program, Timeline& timeline);

}  // namespace shardwright::sim
