// SPDX-License-Identifier: Apache-2.0
// What a pipeline's stages do can be walked: operands exist, lifetimes hold, sends meet receives.
#include "sim/pipeline/step_program.h"

#include "sim/core/placement.h"
#include "sim/memory/memory.h"
#include "sim/memory/stage_memory.h"
#include "tests/sim/model_parallel_plans.h"
#include "tests/sim/stage_walk.h"

namespace shardwright::sim {
namespace {

Model shallow_llama() {
  Model model = llama_70b();
  model.layers = 8;
  return model;
}

Plan walked(PipelineKind kind, std::int64_t pp, std::int64_t virtual_stages) {
  Plan plan = plan_of(4 * pp, 2, pp, 8);
  plan.parallel.pp_schedule = kind;
  plan.parallel.virtual_stages = virtual_stages;
  plan.seq_len = 2048;
  return plan;
}

std::vector<Plan> pipelines() {
  return {
      walked(PipelineKind::kGpipe, 2, 1),       walked(PipelineKind::kOneForwardOneBackward, 2, 1),
      walked(PipelineKind::kInterleaved, 2, 2), walked(PipelineKind::kInterleaved, 4, 2),
      walked(PipelineKind::kZb1p, 2, 1),        walked(PipelineKind::kZb1p, 4, 1),
      walked(PipelineKind::kZbv, 2, 2),         walked(PipelineKind::kDualpipe, 2, 2)};
}

std::vector<Schedule> stages_of(const Plan& plan, const profiles::Profile& profile,
                                const Model& model = shallow_llama()) {
  StepProgram step;
  write_step(model, plan, profile.stack, profile.cluster,
             LayerPrograms(model, plan, profile.stack, profile.cluster.gpu), step);
  return step.stages;
}

std::string told(const Plan& plan) {
  return fmt::format("{} {} pp {} {}", plan.stack, name_of(plan.strategy), plan.parallel.pp,
                     name_of(plan.parallel.schedule()));
}

void expect_walkable(const Plan& plan, const profiles::Profile& profile,
                     const Model& model = shallow_llama()) {
  const std::vector<Schedule> stages = stages_of(plan, profile, model);
  const StageWalk walk(stages);
  EXPECT_THAT(walk.faults(), IsEmpty()) << told(plan);
  const LayerPrograms programs(model, plan, profile.stack, profile.cluster.gpu);
  ProgramCache cache(model, profile.stack, profile.cluster.gpu);
  const std::vector<MemoryLevel> added =
      StageMemory(model, profile, cache).levels(plan, partition_layers(model, plan, profile.stack));
  const Bytes arriving =
      programs.bytes_of(Tensor::kX) * (pipeline_shape(plan).interleaves() ? plan.parallel.pp : 2);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const MemoryLevel walked = allocated_peak(stages[s]).level;
    EXPECT_EQ(walk.peak_bytes(s), walked.bytes) << told(plan);
    EXPECT_EQ(added[s].bytes - arriving, walked.bytes) << told(plan);
  }
}

TEST(StepProgram, EverySchedulesStagesCanBeWalked) {
  for (Plan plan : pipelines()) {
    expect_walkable(plan, h100());
    plan.recompute = Recompute::kFull;
    plan.ckpt_layers = 4;
    expect_walkable(plan, h100());
  }
}

TEST(StepProgram, EveryStrategyCanBeWalkedBesideTensorParallelism) {
  for (const char* stack : {"megatron-core", "torch-compile", "torch-eager", "hf-eager"}) {
    const profiles::Profile profile = profiles::load_profile("dgx-h100", stack);
    for (const Strategy strategy : all_strategies()) {
      Plan plan = walked(PipelineKind::kOneForwardOneBackward, 2, 1);
      plan.stack = stack;
      plan.strategy = strategy;
      if (strategy == Strategy::kSingle || !has_schedule(strategy, profile.stack)) continue;
      expect_walkable(plan, profile);
    }
  }
}

TEST(StepProgram, OfAStepWithOneMicroBatch) {
  Plan plan = walked(PipelineKind::kOneForwardOneBackward, 2, 1);
  plan.grad_accum = 1;
  expect_walkable(plan, h100());
}

TEST(StepProgram, ATiedHeadIsOnTwoStages) {
  Model tied = shallow_llama();
  tied.tied_head = true;
  for (const Plan& plan : pipelines()) expect_walkable(plan, h100(), tied);
}

TEST(StepProgram, ExpertsCanBeWalked) {
  Model model = shallow_llama();
  model.experts.count = 8;
  model.experts.per_token = 2;
  model.experts.ffn = 4096;
  for (Plan plan : pipelines()) {
    plan.parallel.ep = 2;
    expect_walkable(plan, h100(), model);
    plan.numerics.precision = Precision::kFp8;
    expect_walkable(plan, h100(), model);
  }
}

TEST(StepProgram, EveryStageRecomputesEveryOtherLayer) {
  Plan plan = walked(PipelineKind::kOneForwardOneBackward, 2, 1);
  plan.recompute = Recompute::kFull;
  plan.ckpt_layers = 4;
  plan.ckpt_stride = 2;
  for (const Schedule& stage : stages_of(plan, h100())) {
    std::set<std::int32_t> units;
    for_each_op(stage, [&](const OpInstance& at, const Op& op) {
      if (op.phase == Phase::kRecompute) units.insert(at.unit);
    });
    const std::int32_t first = stage.stage_layers.front().first;
    EXPECT_THAT(units, ElementsAre(first, first + 2));
  }
}

/// The faults that the walk finds once `break_it` has changed the second of two stages.
std::vector<std::string> faults_of(PipelineKind kind, void (*break_it)(Schedule&)) {
  std::vector<Schedule> stages = stages_of(walked(kind, 2, 1), h100());
  EXPECT_THAT(StageWalk(stages).faults(), IsEmpty());
  break_it(stages[1]);
  return StageWalk(stages).faults();
}

Op& first_op(Schedule& schedule, OpKind kind) {
  return *std::find_if(schedule.ops.begin(), schedule.ops.end(),
                       [kind](const Op& op) { return op.kind == kind && op.peer >= 0; });
}

TEST(StepProgram, TheWalkFindsWhatCannotRun) {
  const PipelineKind usual = PipelineKind::kOneForwardOneBackward;
  EXPECT_THAT(faults_of(usual, [](Schedule& s) { first_op(s, OpKind::kReceive).channel += 2; }),
              Contains(HasSubstr("waits for ever")));
  EXPECT_THAT(faults_of(usual, [](Schedule& s) { first_op(s, OpKind::kSend).channel += 2; }),
              Contains(HasSubstr("of micro-batch 1")));
  EXPECT_THAT(faults_of(usual, [](Schedule& s) { std::swap(s.sections[1], s.sections[3]); }),
              Contains(HasSubstr("of micro-batch")));
  EXPECT_THAT(faults_of(usual, [](Schedule& s) { std::swap(s.sections[1], s.sections[2]); }),
              Contains(HasSubstr("which is not there")));
  EXPECT_THAT(faults_of(usual,
                        [](Schedule& s) {
                          const auto kept = std::find_if(
                              s.memory.begin(), s.memory.end(), [](const MemoryAction& action) {
                                return !action.acquire && action.tensor == Tensor::kAttentionOut;
                              });
                          kept->tensor = Tensor::kNorm1Out;
                        }),
              Contains(HasSubstr("which is not there")));
  // Weight gradients that are put off read what their layer keeps until then.
  EXPECT_THAT(
      faults_of(PipelineKind::kZb1p,
                [](Schedule& s) {
                  const auto late = std::find_if(
                      s.sections.begin(), s.sections.end(), [](const Section& section) {
                        return section.pass && section.pass->kind == PassKind::kBackwardWeight;
                      });
                  const auto input = std::find_if(
                      s.sections.begin(), s.sections.end(), [](const Section& section) {
                        return section.pass && section.pass->kind == PassKind::kBackwardInput;
                      });
                  std::swap(*late, *input);
                }),
      Contains(HasSubstr("which is not there")));
}

TEST(StepProgram, MessagesAreAsManyAsPassesThatHandOn) {
  const std::vector<Schedule> stages = stages_of(walked(PipelineKind::kInterleaved, 2, 2), h100());
  // Three places between four chunks, each way, eight micro-batches.
  EXPECT_EQ(StageWalk(stages).messages(), 3 * 2 * 8);
}

TEST(StepProgram, NativeStagesAllocateWhatIsPredicted) {
  const profiles::Profile profile = profiles::load_profile("dgx-h100", "native");
  for (const Plan& like : pipelines()) {
    if (like.parallel.schedule() == PipelineKind::kDualpipe) continue;
    for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kYafsdp}) {
      Plan plan = like;
      plan.stack = "native";
      plan.strategy = strategy;
      const Prediction predicted = predict(shallow_llama(), profile, plan);
      const std::vector<Schedule> stages =
          executed_step(shallow_llama(), plan, profile.stack, profile.cluster.gpus_per_node).stages;
      EXPECT_THAT(StageWalk(stages).faults(), IsEmpty()) << told(plan);
      ASSERT_EQ(predicted.stages.size(), stages.size());
      for (std::size_t s = 0; s < stages.size(); ++s) {
        EXPECT_EQ(predicted.stages[s].peak_allocated_bytes, static_memory_bytes(stages[s]))
            << told(plan) << " stage " << s;
      }
    }
  }
}

}  // namespace
}  // namespace shardwright::sim
