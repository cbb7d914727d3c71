// SPDX-License-Identifier: Apache-2.0
// Timelines of model-parallel plans: whole, in order, equal to the prediction, and read back from a
// trace.
#include "sim/pipeline/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "sim/core/error.h"
#include "sim/pipeline/timeline_trace.h"
#include "sim/predict.h"
#include "sim/trace/chrome_events.h"
#include "sim/trace/step_trace.h"
#include "tests/sim/model_parallel_plans.h"
#include "tests/support/temp_folder.h"

namespace shardwright::sim {
namespace {

using ::testing::HasSubstr;

Plan scheduled(PipelineKind kind, std::int64_t virtual_stages) {
  Plan plan = plan_of(64, 4, 4, 16);
  plan.parallel.pp_schedule = kind;
  plan.parallel.virtual_stages = virtual_stages;
  return plan;
}

std::vector<Plan> plans_of_every_schedule() {
  Plan recomputed = scheduled(PipelineKind::kOneForwardOneBackward, 1);
  recomputed.recompute = Recompute::kFull;
  recomputed.ckpt_layers = 40;
  Plan deferred = scheduled(PipelineKind::kInterleaved, 5);
  deferred.parallel.tp_overlap = TensorOverlap::kUserbuffers;
  return {scheduled(PipelineKind::kGpipe, 1),
          scheduled(PipelineKind::kOneForwardOneBackward, 1),
          scheduled(PipelineKind::kInterleaved, 5),
          scheduled(PipelineKind::kZb1p, 1),
          scheduled(PipelineKind::kZbv, 2),
          scheduled(PipelineKind::kDualpipe, 2),
          recomputed,
          deferred};
}

std::string words(const Plan& plan) {
  return std::string(name_of(plan.parallel.schedule())) + " " + recompute_name(plan);
}

TEST(TimelineTest, SlicesOfAStageFillTheStepWithoutGapOrOverlap) {
  const Model model = llama_70b();
  for (const Plan& plan : plans_of_every_schedule()) {
    SCOPED_TRACE(words(plan));
    const ParallelTimeline timeline = parallel_timeline(model, h100(), plan);
    const Prediction prediction = predict(model, h100(), plan);
    EXPECT_NEAR(static_cast<double>(timeline.step_ns) * 1e-9, prediction.time.iteration_s, 1e-8);
    EXPECT_DOUBLE_EQ(timeline.bubble, prediction.pipeline.bubble);
    ASSERT_EQ(std::ssize(timeline.stages), plan.parallel.pp);
    double busy = 0;
    for (const StageTimeline& stage : timeline.stages) {
      Nanoseconds at = 0;
      for (std::size_t i = 0; i < stage.slices.size(); ++i) {
        const StageSlice& slice = stage.slices[i];
        const bool pair = i > 0 && stage.slices[i - 1].begin_ns == slice.begin_ns;
        ASSERT_EQ(slice.begin_ns, pair ? stage.slices[i - 1].begin_ns : at);
        ASSERT_GT(slice.end_ns, slice.begin_ns);
        at = slice.end_ns;
        if (!pair && slice.kind <= SliceKind::kWeightGradient)
          busy += static_cast<double>(slice.end_ns - slice.begin_ns);
      }
      EXPECT_EQ(at, timeline.step_ns);
    }
    // What is not a pass until the last one ends is the bubble that the prediction states.
    const double whole =
        static_cast<double>(timeline.stages.size()) * static_cast<double>(timeline.pipeline_ns);
    EXPECT_NEAR(1 - busy / whole, timeline.bubble, 1e-9);
  }
}

TEST(TimelineTest, EveryPassIsThereOnce) {
  const Model model = llama_70b();
  for (const Plan& plan : plans_of_every_schedule()) {
    SCOPED_TRACE(words(plan));
    const ParallelTimeline timeline = parallel_timeline(model, h100(), plan);
    for (const StageTimeline& stage : timeline.stages) {
      std::map<std::tuple<bool, int, int>, int> passes;
      for (const StageSlice& slice : stage.slices) {
        if (slice.kind > SliceKind::kWeightGradient) continue;
        if (slice.kind == SliceKind::kWeightGradient) continue;
        ++passes[{slice.kind == SliceKind::kForward, slice.chunk, slice.micro_batch}];
      }
      const bool two_ways = timeline.shape.kind == PipelineKind::kDualpipe;
      EXPECT_EQ(std::ssize(passes), 2 * timeline.shape.chunks * 16 / (two_ways ? 2 : 1) /
                                        (plan.grad_accum == 4 ? 4 : 1));
      for (const auto& [pass, times] : passes) EXPECT_EQ(times, 1);
    }
  }
}

TEST(TimelineTest, OpenedOperationsLieWithinTheirPassesAndAddUpToThem) {
  const Model model = llama_70b();
  for (const Plan& plan : plans_of_every_schedule()) {
    SCOPED_TRACE(words(plan));
    const ParallelTimeline timeline = parallel_timeline(model, h100(), plan);
    for (const StageTimeline& stage : timeline.stages) {
      ASSERT_FALSE(stage.operations.empty());
      double computing = 0, passes = 0;
      std::map<bool, Nanoseconds> free;  // by stream
      for (const StageSlice& slice : stage.slices) {
        if (slice.kind > SliceKind::kWeightGradient || slice.chunk != stage.opened_chunk ||
            slice.micro_batch != stage.opened_micro_batch) {
          continue;
        }
        passes += static_cast<double>(slice.end_ns - slice.begin_ns);
        for (const OperationSlice& op : stage.operations) {
          if (op.begin_ns < slice.begin_ns || op.begin_ns >= slice.end_ns) continue;
          ASSERT_LE(op.end_ns, slice.end_ns);
        }
      }
      for (const OperationSlice& op : stage.operations) {
        ASSERT_GE(op.end_ns, op.begin_ns);
        if (op.communication && op.op.collective.overlap == Overlap::kFollowing) continue;
        ASSERT_GE(op.begin_ns, free[false]) << operation_name(op);
        free[false] = op.end_ns;
        computing += static_cast<double>(op.end_ns - op.begin_ns);
      }
      // Layers that wait for what runs beside them, and rounding, make the rest.
      EXPECT_LE(computing, passes * (1 + 1e-9));
      if (timeline.shape.kind != PipelineKind::kDualpipe) {
        EXPECT_GT(computing, 0.85 * passes);
      }
    }
  }
}

TEST(TimelineTest, AnOpenedLayerHoldsWhatTheBodySays) {
  const Model model = llama_70b();
  const Plan plan = scheduled(PipelineKind::kOneForwardOneBackward, 1);
  const ParallelTimeline timeline = parallel_timeline(model, h100(), plan);
  const UnitProgram body = ProgramWriter(model, plan, h100().stack).layer(false);
  for (std::size_t s = 0; s < timeline.stages.size(); ++s) {
    std::map<std::int64_t, std::size_t> forward, backward;
    for (const OperationSlice& op : timeline.stages[s].operations) {
      if (op.layer < 0) continue;
      ++(op.phase == Phase::kForward ? forward : backward)[op.layer];
    }
    EXPECT_EQ(forward.size(), 20U);
    EXPECT_EQ(forward.begin()->first, static_cast<std::int64_t>(20 * s));
    for (const auto& [layer, count] : forward) EXPECT_EQ(count, body.forward.size());
    for (const auto& [layer, count] : backward) EXPECT_EQ(count, body.backward.size());
  }
}

TEST(TimelineTest, TransfersLeadFromStageToStage) {
  const Model model = llama_70b();
  const Plan plan = scheduled(PipelineKind::kInterleaved, 5);
  const ParallelTimeline timeline = parallel_timeline(model, h100(), plan);
  // 16 micro-batches over 20 parts, both ways.
  EXPECT_EQ(std::ssize(timeline.transfers), 2 * 16 * 19);
  for (const Transfer& transfer : timeline.transfers) {
    EXPECT_GT(transfer.end_ns, transfer.begin_ns);
    EXPECT_NE(transfer.from, transfer.to);
  }
  const Plan blocking = scheduled(PipelineKind::kOneForwardOneBackward, 1);
  const ParallelTimeline other = parallel_timeline(model, h100(), blocking);
  EXPECT_TRUE(other.transfers.empty()) << "stages stand still for them";
  const auto stands = [](const StageSlice& s) { return s.kind == SliceKind::kTransfer; };
  EXPECT_TRUE(std::any_of(other.stages[0].slices.begin(), other.stages[0].slices.end(), stands));
}

/// Slices by process and track, in nanoseconds; other events by their type.
struct ReadTrace {
  std::map<std::pair<int, int>, std::vector<std::array<Nanoseconds, 2>>> slices;
  std::vector<std::string> processes;
  std::map<std::string, int> types;
};

ReadTrace read_back(const std::filesystem::path& path) {
  ReadTrace read;
  for_each_event(path, [&](nlohmann::json& event) {
    ++read.types[event.at("ph").get<std::string>()];
    if (event["ph"] == "M" && event["name"] == "process_name")
      read.processes.push_back(event["args"]["name"]);
    if (event["ph"] != "X") return;
    const auto ns = [&](const char* key) {
      return static_cast<Nanoseconds>(std::llround(event.at(key).get<double>() * 1e3));
    };
    read.slices[{event.at("pid"), event.at("tid")}].push_back({ns("ts"), ns("ts") + ns("dur")});
  });
  return read;
}

TEST(TimelineTest, TheTraceReadsBackAndItsSlicesNest) {
  const Model model = llama_70b();
  const std::filesystem::path path = testing::temp_folder() / "stages.json";
  for (const Plan& plan : plans_of_every_schedule()) {
    SCOPED_TRACE(words(plan));
    const ParallelTimeline timeline = parallel_timeline(model, h100(), plan);
    const TitledTimeline titled{"predicted", &timeline};
    write_stage_trace(path, {&titled, 1}, {{"tool", "a test"}});
    ReadTrace read = read_back(path);
    ASSERT_EQ(std::ssize(read.processes), plan.parallel.pp);
    EXPECT_THAT(read.processes[0], HasSubstr("embedding"));
    EXPECT_EQ(read.types["s"], read.types["f"]);
    EXPECT_EQ(read.types["s"] > 0, plan.parallel.pp > 1);
    for (auto& [track, slices] : read.slices) {
      std::sort(slices.begin(), slices.end(), [](const auto& a, const auto& b) {
        return std::pair(a[0], -a[1]) < std::pair(b[0], -b[1]);
      });
      std::vector<Nanoseconds> open;
      for (const auto& [begin, end] : slices) {
        while (!open.empty() && open.back() <= begin) open.pop_back();
        if (!open.empty()) {
          ASSERT_LE(end, open.back()) << "process " << track.first << " track " << track.second;
        }
        open.push_back(end);
      }
    }
    const std::size_t first_stage = timeline.stages[0].slices.size();
    EXPECT_EQ((read.slices[{1, 1}].size()), first_stage);
  }
}

TEST(TimelineTest, ReadersOfStepsOfARankSayWhatTheTraceIs) {
  const Model model = llama_70b();
  const std::filesystem::path path = testing::temp_folder() / "refused.json";
  const Plan plan = scheduled(PipelineKind::kZb1p, 1);
  const ParallelTimeline timeline = parallel_timeline(model, h100(), plan);
  const TitledTimeline titled{"predicted", &timeline};
  write_stage_trace(path, {&titled, 1}, notes_of(TraceIdentity{"llama", "{}", plan, 8}));
  try {
    read_step_trace(path);
    FAIL() << "read";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("tp is 4, but"));
    EXPECT_THAT(error.what(), HasSubstr("passes of its stages"));
  }
}

}  // namespace
}  // namespace shardwright::sim
