// SPDX-License-Identifier: Apache-2.0
// One step of a model-parallel plan: bodies, pipeline, data parallelism, memory.
//
// Ranks of one stage are alike, so a step has as many actors as stages. The lists of body.h are
// timed once per kind; chunks are sums of them; the recurrence of sim/pipeline puts chunks of all
// stages and micro-batches in their places; data_parallel.h adds what follows. What the pieces of
// the answer mean: compute and exposed communication are those of the busiest stage, the bubble is
// what it waits for others, and all of them add up to the step. Left out: contention between the
// last backward passes and the reduction that runs beside them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/model.h"
#include "sim/parallel/body_cost.h"
#include "sim/parallel/data_parallel.h"
#include "sim/parallel/stage_memory.h"
#include "sim/pipeline/recurrence.h"

namespace shardwright::sim {

struct StageTime {
  double compute_s = 0, exposed_s = 0, host_s = 0, optimizer_s = 0, bubble_s = 0;
};

struct ParallelStep {
  double step_s = 0;
  double pipeline_s = 0;                // of it, until the last backward pass
  double bubble = 0;                    // share of the stages' time in the pipeline
  std::int32_t steady_state_after = 0;  // micro-batches that were simulated one by one
  std::int64_t busiest = 0;
  std::vector<ChunkContent> parts;
  std::vector<std::int64_t> layers;  // by stage
  std::vector<StageTime> stages;
  std::vector<StageMemory> memory;
  double forward_s = 0, backward_s = 0;         // of the busiest stage
  double flops = 0;                             // of products, a rank of the busiest stage
  std::array<double, kCommGroups> exposed_s{};  // of the busiest stage
  CommunicationByGroup sent{};                  // a rank of the busiest stage
};

/// Lists of body.h that chunks are made of.
enum class BodyKind : std::uint8_t {
  kEmbedding,
  kLayer,
  kRecomputedLayer,
  kExpertLayer,
  kRecomputedExpertLayer,
  kPrediction,
  kHead
};
inline constexpr std::size_t kBodyKinds = 7;
struct BodyCount {
  BodyKind kind = BodyKind::kLayer;
  std::int64_t count = 0;
};
/// What a chunk runs forward, in order; backward in the opposite one.
std::vector<BodyCount> bodies_of(const ChunkContent& content);
Body write_body(const BodyWriter& writer, BodyKind kind);

/// What a step was made of, for whoever draws it (timeline.h).
struct StepRecord {
  PipelineShape shape;
  PipelineTimes times;
  PipelineResult pipeline;         // with all of its spans
  std::vector<StageTail> tails;    // by stage
  std::vector<double> deferred_s;  // gradients of the head that a stage computes after its passes
  std::vector<ReductionSpan> reductions;
  double reduced_s = 0;   // when the last stage's gradients are summed
  double updated_s = 0;   // norm, optimizer and gather of the slowest stage
  double unvaried_s = 0;  // the step before what nodes vary
  CudaGraphs graphs = CudaGraphs::kNone;
};

/// What the engine needs that the plan may lack: throws Error where the stack does not do what the
/// plan asks for, or nothing models it yet.
void check_modelled(const Model& model, const Plan& plan, const profiles::Profile& profile);

/// Keeps the times of products, so that many plans of one model and profile are cheap.
class ParallelEngine {
 public:
  ParallelEngine(const Model& model, const profiles::Profile& profile);
  /// With a `record` every micro-batch is walked, however many there are.
  ParallelStep run(const Plan& plan, StepRecord* record = nullptr);
  /// At most the time of run(), at a small part of its cost (parallel_bound.cc). The plan must be
  /// one that run() takes.
  double least_step_s(const Plan& plan);

 private:
  struct PassTimes {
    BodyTime forward, backward;
    // Of the device while a gather of sharded parameters is there all the time; 0: there is none.
    double forward_beside_s = 0, backward_beside_s = 0;
  };
  using Bodies = std::array<PassTimes, kBodyKinds>;
  struct ChunkPasses {
    PassTimes times;
    double forward_s = 0, backward_s = 0, delayed_s = 0;
    double deferred_s = 0;  // once a step, after the last micro-batch
  };

  /// What a stage did in the whole step.
  struct StageSums {
    StageTime parts;
    double forward_s = 0, backward_s = 0, flops = 0;
    std::array<double, kCommGroups> exposed_s{};
    CommunicationByGroup sent{};
  };

  /// What the times of bodies depend on: a plan without what they do not, and where groups lie.
  struct BodyKey {
    Plan plan;
    std::array<std::int64_t, 4> places{};
    bool operator==(const BodyKey&) const = default;
  };
  struct BodyKeyHash {
    std::size_t operator()(const BodyKey& key) const;
  };

  /// Puts the groups of the plan where they are, for all that follows.
  CudaGraphs place(const Plan& plan);
  BodyKey body_key(const Plan& plan) const;  // of the plan that was placed
  const Bodies& known_bodies(const Plan& plan);
  Bodies time_bodies(const Plan& plan, const std::vector<ChunkContent>& parts);
  /// What the head's weight gradients take that wait for the flush, of all micro-batches together
  /// (Megatron's defer_embedding_wgrad_compute).
  double deferred_head_s(const Plan& plan, const Bodies& bodies) const;
  ChunkPasses time_chunk(const Plan& plan, const Bodies& bodies, const ChunkContent& content,
                         DataParallel& data);
  std::vector<ChunkPasses> time_chunks(const Plan& plan, const std::vector<ChunkContent>& parts,
                                       DataParallel& data);
  /// What the recurrence walks: chunks of all stages, and exchanges as the stack does them.
  PipelineTimes pipeline_times(const PipelineShape& shape, const std::vector<ChunkPasses>& passes,
                               double message_bytes);
  /// Reductions, optimizer and gathers after the last backward pass of a stage.
  StageTail stage_tail(const Plan& plan, const PipelineShape& shape, std::int32_t stage,
                       const std::vector<ChunkPasses>& passes, const StageTimes& times,
                       const ParallelStep& step, DataParallel& data, StepRecord* record);
  StageSums stage_sums(const PipelineShape& shape, std::int32_t stage,
                       const std::vector<ChunkPasses>& passes, const StageTimes& times,
                       const StageTail& tail, double step_s) const;
  void finish(const Plan& plan, const PipelineShape& shape, const std::vector<ChunkPasses>& passes,
              const PipelineResult& pipeline, DataParallel& data, ParallelStep& step,
              StepRecord* record);
  /// Gathers and reductions of sharded parameters beside the layers of a chunk.
  void add_sharded_layers(const Plan& plan, const ChunkContent& content, DataParallel& data,
                          PassTimes& times);
  ReducedChunk reduced_chunk(const Plan& plan, const ChunkContent& content,
                             const ChunkPasses& passes) const;
  /// A step with what varies between nodes.
  double varied_s(const Plan& plan, double step_s) const;

  const Model& model_;
  const profiles::Profile& profile_;
  BodyCosts costs_;
  ModelUnits units_;                                               // of the plan that was placed
  std::map<std::array<std::int64_t, 3>, ModelUnits> known_units_;  // by tp, ep, etp
  std::unordered_map<BodyKey, Bodies, BodyKeyHash> bodies_;
};

}  // namespace shardwright::sim
