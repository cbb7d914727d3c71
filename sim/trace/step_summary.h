// SPDX-License-Identifier: Apache-2.0
// A trace boiled down: for every operation what a step spends in it, over all ranks and steps that
// the trace holds.
//
// A lane is one rank in one step. In each lane the step's time is shared out without rest: a moment
// belongs to the kernel that runs, else to the collective that is resident, else to no operation
// (the device waits for the host). So an operation has a duration and an exposed time, which is its
// part of the step; hidden collectives have none. Of a pipeline a stage's step is its own, a moment
// of no operation belongs to what the stage does then, and parts of the step are means over the
// stages, so that they still add up. Values are medians over lanes, which single
// disturbed steps do not move. The least duration of a collective over the ranks of its group is
// its transfer; what ranks spend beyond it they wait for each other. A message between stages lasts
// from when it was sent; what its receive lasts before is waiting, and the stage's bubble. So is
// what the gradient norm lasts before the last rank has come to it; without stages it is waiting of
// the ranks' group.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "profiles/gpu_file.h"
#include "profiles/profile.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/units.h"
#include "sim/trace/step_trace.h"

namespace shardwright::sim {

struct OperationTimes {
  TracedOperation operation;
  double duration_s = 0;  // on one rank
  double exposed_s = 0;   // its part of the step
  double transfer_s = 0;  // collectives: the duration without waiting
  double awaited_s = 0;   // receives: until the message was sent, gradient norms: until all ranks
                          // were there; not in the duration
  double contended = 0;   // share of the duration beside the other sort of operation

  double waiting_s() const { return awaited_s + duration_s - transfer_s; }
};

/// What a rank communicates in a step with the ranks of a group.
struct GroupTimes {
  // In which nothing else runs, without waiting for messages: ranks' means in each step and their
  // median. Medians of operations add up to less where now this one waits for long, now that one.
  double exposed_s = 0;
  double transfer_s = 0;  // exposed or not
  double waiting_s = 0;   // for the last rank that takes part, or for a message to be sent
};
/// By group; those that divide the replicas are told as kData.
using Communication = std::array<GroupTimes, kCommGroups>;

struct CommunicationSummary {
  Communication groups{};                // of a pipeline, of the stage that limits
  double transfer_s = 0, waiting_s = 0;  // of all groups, the mean of the stages
};

/// A rank whose kernels take longer than those of most, or a step that took longer than most.
struct Slow {
  std::int64_t number = 0;  // of the rank or step
  double by = 0;            // fraction beyond the median
};

/// A stage of a pipeline; values are medians over its ranks and the steps.
struct StageSummary {
  double busy_s = 0;  // in passes
  // Outside of them until the last pass of all stages ends: before the stage's first backward pass,
  // after its last forward one, and between.
  double warm_up_s = 0, steady_s = 0, drain_s = 0;
  Communication communication{};

  double bubble_s() const { return warm_up_s + steady_s + drain_s; }
};

struct PipelineSummary {
  std::vector<StageSummary> stages;
  double passes_s = 0;  // from the first pass of a step to the last one's end

  /// Of the stages' time: PipelinePrediction::bubble of a prediction.
  double share(double StageSummary::*part) const;
  double bubble() const;
  /// Which has the most to do, the first of several.
  std::size_t limiting() const;
};

struct StepSummary {
  std::map<OpId, OperationTimes> operations;
  std::optional<PipelineSummary> pipeline;
  CommunicationSummary communication;
  double stage_share = 1;                            // of a stage in the step: 1 / stages
  std::array<double, kStageWorks> idle_by_work_s{};  // of idle_s, where a pipeline says what it is
  double met_s = 0;                       // of idle_s, until all ranks came to the gradient norm
  double closed_s = 0;                    // likewise, passes whose operations are not in the trace
  std::map<std::string, double> alone_s;  // kernels that ran alone, by name without layer: median
  double step_s = 0;                      // median over steps of the slowest rank's
  double idle_s = 0;                      // no operation runs: median over lanes
  std::int64_t ranks = 0;
  std::int64_t steps = 0;
  std::vector<Slow> slow_ranks, slow_steps;

  /// Of a step, what the medians of its parts do not add up to.
  double scatter_s() const;
};

/// Throws Error when no kernel in the trace has an operation.
StepSummary summary_of(const StepTrace& trace);

/// Contended share below which a kernel ran alone.
inline constexpr double kAlone = 0.02;

/// "layer17.forward.norm" without the layer's number: "layer.forward.norm".
std::string without_layer(const std::string& name);

// The stages of a traced pipeline: what each does and waits for until the last backward pass.

/// Without what is exposed. None where the trace lacks passes of a stage.
std::optional<PipelineSummary> pipeline_of(const StepTrace& trace);

// How much of its GPUs a run uses: model FLOPs against the dense peak of the data sheet, and
// against the best product that was measured on such a GPU.

struct Utilisation {
  double step_flops = 0;  // of all ranks, as MFU counts: 6 a matrix weight and token, causal half
  double peak_flops = 0;  // dense, of all GPUs that the run uses; 0: not known
  double product_flops = 0;  // the same from the best measured product; 0: none was measured
  Bytes memory_bytes = 0;    // of one GPU
  std::string gpu;           // id in the profiles; empty: not known
  double gpus = 0;           // that the run uses
  std::string basis;         // "1 x NVIDIA H200, 989 TFLOP/s dense bf16 each"

  std::optional<double> mfu(double step_s) const { return share(peak_flops, step_s); }
  std::optional<double> of_products(double step_s) const { return share(product_flops, step_s); }

 private:
  std::optional<double> share(double flops, double step_s) const {
    if (flops <= 0 || step_s <= 0) return std::nullopt;
    return step_flops / step_s / flops;
  }
};

/// GPUs of one kind.
struct UsedGpus {
  profiles::SeenGpu kind;
  std::int64_t count = 0;  // 0: the host
};

/// Of a run on `gpus`, of which it uses as many as it has ranks. Of the host nothing but the FLOPs
/// is known.
Utilisation utilisation_of(const Model& model, const Plan& plan, const UsedGpus& gpus);
/// Takes the best product of the profile, where it was measured on such a GPU.
void count_measured_products(Utilisation& use, const profiles::Profile& profile, DType dtype);

/// What is known of such GPUs without measuring, in the machine they are mostly sold in; `ranks`
/// share them when there are more. Throws Error when this kind is not known.
profiles::Profile gpu_profile(const UsedGpus& gpus, std::int64_t ranks);

}  // namespace shardwright::sim
