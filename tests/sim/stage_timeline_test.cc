// SPDX-License-Identifier: Apache-2.0
// Timelines of pipelines: whole, in order, equal to the prediction, and read back from a trace.

#include <nlohmann/json.hpp>

#include "sim/core/base/atomic_file.h"
#include "sim/core/base/numbers.h"
#include "sim/core/chrome_trace.h"
#include "sim/cost/cost.h"
#include "sim/explain/explain.h"
#include "sim/pipeline/pipeline_step.h"
#include "sim/trace/observations.h"
#include "sim/trace/step_summary.h"
#include "sim/trace/step_trace.h"
#include "sim/trace/trace_comparison.h"
#include "tests/sim/model_parallel_plans.h"
#include "tests/support/files.h"
#include "tests/support/temp_folder.h"

namespace shardwright::sim {
namespace {

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

PredictedStep predicted(const Plan& plan, const Model& model = llama_70b()) {
  Predictor predictor(model, h100());
  return predicted_step(predictor, plan);
}

std::string words(const Plan& plan) {
  return std::string(name_of(plan.parallel.schedule())) + " " + recompute_name(plan);
}

std::map<std::int32_t, std::vector<PassSpan>> by_rank(const Timeline& timeline) {
  std::map<std::int32_t, std::vector<PassSpan>> ranks;
  for (const PassSpan& span : timeline.passes) ranks[span.rank].push_back(span);
  return ranks;
}

TEST(StageTimeline, WhatAStageDoesFillsTheStepWithoutGapOrOverlap) {
  for (const Plan& plan : plans_of_every_schedule()) {
    SCOPED_TRACE(words(plan));
    const PredictedStep step = predicted(plan);
    const Timeline& timeline = step.timeline;
    EXPECT_NEAR(static_cast<double>(timeline.step_ns) * 1e-9, step.prediction.time.iteration_s,
                1e-8);
    const auto ranks = by_rank(timeline);
    ASSERT_EQ(std::ssize(ranks), plan.parallel.pp);
    ASSERT_EQ(std::ssize(timeline.stages), plan.parallel.pp);
    for (const auto& [rank, spans] : ranks) {
      Nanoseconds at = 0;
      for (std::size_t i = 0; i < spans.size(); ++i) {
        const bool pair = i > 0 && spans[i - 1].begin_ns == spans[i].begin_ns;
        ASSERT_EQ(spans[i].begin_ns, pair ? spans[i - 1].begin_ns : at);
        ASSERT_GT(spans[i].end_ns, spans[i].begin_ns);
        at = spans[i].end_ns;
      }
      EXPECT_EQ(at, timeline.step_ns);
    }
  }
}

TEST(StageTimeline, TheBubbleIsThatOfThePrediction) {
  for (const Plan& plan : plans_of_every_schedule()) {
    SCOPED_TRACE(words(plan));
    const PredictedStep step = predicted(plan);
    const auto pipeline = pipeline_of(step_trace_of(step.stages, step.timeline, "made"));
    ASSERT_TRUE(pipeline);
    EXPECT_NEAR(pipeline->bubble(), step.prediction.pipeline.bubble, 1e-9);
    EXPECT_GT(pipeline->share(&StageSummary::warm_up_s), 0);
    EXPECT_GT(pipeline->share(&StageSummary::drain_s), 0);
  }
}

TEST(StageTimeline, EveryPassIsThereOnce) {
  for (const Plan& plan : plans_of_every_schedule()) {
    SCOPED_TRACE(words(plan));
    const PredictedStep step = predicted(plan);
    const PipelineShape shape = pipeline_shape(plan);
    for (const auto& [rank, spans] : by_rank(step.timeline)) {
      std::map<std::tuple<bool, int, int>, int> passes;
      for (const PassSpan& span : spans) {
        if (!is_pass(span.work) || span.work == StageWork::kWeightGradient) continue;
        ++passes[{span.work == StageWork::kForward, span.chunk, span.micro_batch}];
      }
      EXPECT_EQ(std::ssize(passes), 2 * shape.chunks * shape.passes());
      for (const auto& [pass, times] : passes) EXPECT_EQ(times, 1);
    }
  }
}

TEST(StageTimeline, OperationsLieWithinTheirPassesAndAddUpToThem) {
  for (const Plan& plan : plans_of_every_schedule()) {
    SCOPED_TRACE(words(plan));
    const PredictedStep step = predicted(plan);
    std::map<std::int32_t, Nanoseconds> free;
    std::map<std::int32_t, double> computing, busy;
    for (const auto& [rank, spans] : by_rank(step.timeline)) {
      for (std::size_t i = 0; i < spans.size(); ++i) {
        const bool pair = i > 0 && spans[i - 1].begin_ns == spans[i].begin_ns;
        if (is_pass(spans[i].work) && !pair)
          busy[rank] += static_cast<double>(spans[i].end_ns - spans[i].begin_ns);
      }
    }
    const StepTrace trace = step_trace_of(step.stages, step.timeline, "made");
    for (const Span& span : step.timeline.spans) {
      const TracedOperation& operation = trace.operations.at(span.id);
      EXPECT_EQ(operation.stage, span.rank);
      if (operation.phase == Phase::kOptimizer || span.stream != 0) continue;
      ASSERT_GE(span.begin_ns, free[span.rank]) << operation.name;
      free[span.rank] = span.end_ns;
      computing[span.rank] += static_cast<double>(span.end_ns - span.begin_ns);
    }
    // Layers that wait for their collectives make the rest.
    for (const auto& [rank, time] : computing) {
      EXPECT_LE(time, busy[rank] * (1 + 1e-9));
      EXPECT_GT(time, 0.6 * busy[rank]);
    }
  }
}

// Of a layer that communicates, what is exposed by group is what the prediction says.
TEST(StageTimeline, ExposedTimeByGroupIsThatOfThePrediction) {
  for (const PipelineKind kind : {PipelineKind::kGpipe, PipelineKind::kOneForwardOneBackward}) {
    const PredictedStep step = predicted(scheduled(kind, 1));
    const StepSummary summary = summary_of(step_trace_of(step.stages, step.timeline, "made"));
    ASSERT_TRUE(summary.pipeline);
    const Communication& groups = summary.communication.groups;
    const double step_s = step.prediction.time.iteration_s;
    for (std::size_t g = 0; g < groups.size(); ++g)
      EXPECT_NEAR(groups[g].exposed_s, step.prediction.exposed_s[g], 0.01 * step_s) << g;
    EXPECT_GT(groups[static_cast<std::size_t>(CommGroup::kTensor)].exposed_s, 0);
  }
}

TEST(StageTimeline, ALayerHoldsTheSameOperationsInEveryMicroBatch) {
  const Plan plan = scheduled(PipelineKind::kOneForwardOneBackward, 1);
  const PredictedStep step = predicted(plan);
  for (const Schedule& stage : step.stages) {
    std::map<std::int32_t, std::map<std::string, int>> layers;
    for_each_op(stage, [&](const OpInstance& at, const Op& op) {
      const bool gathers = op.kind == OpKind::kAllGather && op.work.group == CommGroup::kShard;
      if (op.phase == Phase::kForward && at.unit >= 1 && at.unit <= stage.layers && !gathers)
        ++layers[at.unit - 1][describe(stage, at)];
    });
    ASSERT_EQ(layers.size(), 20U);
    EXPECT_EQ(layers.begin()->first, 20 * (&stage - step.stages.data()));
    for (const auto& [layer, operations] : layers) {
      for (const auto& [name, times] : operations) EXPECT_EQ(times % 16, 0) << name;
    }
  }
}

TEST(StageTimeline, MessagesLeadFromStageToStage) {
  const PredictedStep step = predicted(scheduled(PipelineKind::kInterleaved, 5));
  const StepTrace trace = step_trace_of(step.stages, step.timeline, "made");
  std::int64_t messages = 0;
  for (const Span& span : step.timeline.spans)
    messages += trace.operations.at(span.id).kind == OpKind::kReceive ? 1 : 0;
  // 16 micro-batches over 20 parts, both ways.
  EXPECT_EQ(messages, 2 * 16 * 19);
  const PredictedStep blocking = predicted(scheduled(PipelineKind::kOneForwardOneBackward, 1));
  const auto stands = [](const PassSpan& s) { return s.work == StageWork::kTransfer; };
  EXPECT_TRUE(
      std::any_of(blocking.timeline.passes.begin(), blocking.timeline.passes.end(), stands));
  const StepTrace other = step_trace_of(blocking.stages, blocking.timeline, "made");
  for (const Span& span : blocking.timeline.spans)
    EXPECT_NE(other.operations.at(span.id).kind, OpKind::kReceive) << "stages stand still for them";
}

std::filesystem::path written(const PredictedStep& step) {
  const std::filesystem::path path = testing::temp_folder() / "stages.json";
  const TracedTimeline traced{"predicted", step.stages.data(), &step.timeline};
  const std::string config = testing::get(profiles::data_dir() / "models" / "llama-3.2-1b.json");
  write_chrome_trace(path, {&traced, 1},
                     notes_of(TraceIdentity{"llama-3.2-1b", config, step.prediction.plan, 8}));
  return path;
}

// Slices of one track nest, so that viewers draw them.
TEST(StageTimeline, TracksOfTheTraceNest) {
  Model model = llama_70b();
  model.layers = 20;
  for (Plan plan : plans_of_every_schedule()) {
    SCOPED_TRACE(words(plan));
    plan.grad_accum = 8;
    plan.ckpt_layers = std::min<std::int64_t>(plan.ckpt_layers, 10);
    std::map<std::pair<int, int>, std::vector<std::pair<Nanoseconds, Nanoseconds>>> tracks;
    std::vector<std::string> processes;
    std::map<std::string, int> types;
    for_each_event(written(predicted(plan, model)), [&](nlohmann::json& event) {
      ++types[event.at("ph").get<std::string>()];
      if (event["ph"] == "M" && event["name"] == "process_name")
        processes.push_back(event["args"]["name"]);
      if (event["ph"] != "X") return;
      const auto ns = [&](const char* key) {
        return static_cast<Nanoseconds>(std::llround(event.at(key).get<double>() * 1e3));
      };
      tracks[{event.at("pid"), event.at("tid")}].emplace_back(ns("ts"), ns("ts") + ns("dur"));
    });
    ASSERT_EQ(std::ssize(processes), plan.parallel.pp);
    EXPECT_THAT(processes[0], HasSubstr("embedding"));
    EXPECT_EQ(types["s"], types["f"]);
    EXPECT_GT(types["s"], 0);
    for (auto& [track, slices] : tracks) {
      std::sort(slices.begin(), slices.end(), [](const auto& a, const auto& b) {
        return std::pair(a.first, -a.second) < std::pair(b.first, -b.second);
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
  }
}

PredictedStep small(std::int64_t tp, std::int64_t pp, PipelineKind kind, std::int64_t chunks) {
  Plan plan = plan_of(16, tp, pp, 4);
  plan.parallel.pp_schedule = kind;
  plan.parallel.virtual_stages = chunks;
  Predictor predictor(shipped("llama-3.2-1b"), h100());
  return predicted_step(predictor, plan);
}

TEST(StageTimeline, ATraceReadsBackAsItWasWritten) {
  for (const auto& [kind, chunks] :
       std::vector<std::pair<PipelineKind, int>>{{PipelineKind::kOneForwardOneBackward, 1},
                                                 {PipelineKind::kInterleaved, 2},
                                                 {PipelineKind::kZbv, 2},
                                                 {PipelineKind::kDualpipe, 2}}) {
    const PredictedStep step = small(2, 2, kind, chunks);
    SCOPED_TRACE(words(step.prediction.plan));
    const StepTrace read = read_step_trace(written(step));
    const Timeline& timeline = read.timeline;
    ASSERT_EQ(timeline.spans.size(), step.timeline.spans.size());
    const auto sorted = [](std::vector<Span> spans) {
      std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
        return std::tie(a.id, a.begin_ns) < std::tie(b.id, b.begin_ns);
      });
      return spans;
    };
    const std::vector<Span> theirs = sorted(timeline.spans), ours = sorted(step.timeline.spans);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      ASSERT_EQ(std::tie(theirs[i].id, theirs[i].rank, theirs[i].begin_ns, theirs[i].end_ns),
                std::tie(ours[i].id, ours[i].rank, ours[i].begin_ns, ours[i].end_ns));
    }
    ASSERT_EQ(timeline.passes.size(), step.timeline.passes.size());
    for (std::size_t i = 0; i < timeline.passes.size(); ++i) {
      const PassSpan &a = timeline.passes[i], &b = step.timeline.passes[i];
      ASSERT_EQ(std::tie(a.work, a.rank, a.chunk, a.micro_batch, a.begin_ns, a.end_ns),
                std::tie(b.work, b.rank, b.chunk, b.micro_batch, b.begin_ns, b.end_ns));
    }
    ASSERT_EQ(timeline.stages.size(), step.timeline.stages.size());
    EXPECT_EQ(timeline.stages.at(1).content, step.timeline.stages.at(1).content);
    const StepTrace made = step_trace_of(step.stages, step.timeline, "made");
    for (const auto& [id, operation] : made.operations) {
      const TracedOperation& other = read.operations.at(id);
      EXPECT_EQ(std::tie(operation.name, operation.kind, operation.phase, operation.layer,
                         operation.stage),
                std::tie(other.name, other.kind, other.phase, other.layer, other.stage));
      EXPECT_EQ(operation.group.has_value(), other.group.has_value()) << operation.name;
    }
    EXPECT_EQ(schedules_of(read).size(), 2U);
  }
}

TEST(StageTimeline, ComparedWithItselfATraceDiffersInNothing) {
  const PredictedStep step = small(2, 2, PipelineKind::kOneForwardOneBackward, 1);
  const StepTrace read = read_step_trace(written(step));
  const TraceComparison comparison =
      compare_traces(step_trace_of(step.stages, step.timeline, "made"), read);
  EXPECT_EQ(comparison.difference_s(), 0);
  EXPECT_NEAR(comparison.predicted_step_s, step.prediction.time.iteration_s, 1e-8);
  ASSERT_FALSE(comparison.operations.empty());
  for (const ComparedOperation& operation : comparison.operations)
    EXPECT_EQ(operation.difference_s(), 0) << operation.name;
  for (const double cause : comparison.causes_s) EXPECT_NEAR(cause, 0, 1e-15);
}

TEST(StageTimeline, CausesAddUpWherePipelinesDiffer) {
  const PredictedStep step = small(2, 2, PipelineKind::kOneForwardOneBackward, 1);
  const StepTrace one = step_trace_of(step.stages, step.timeline, "one");
  StepTrace other = one;
  // The second stage takes twice as long for what it does, and the first one waits for it.
  for (Span& span : other.timeline.spans) {
    if (span.rank == 1) span.begin_ns *= 2, span.end_ns *= 2;
  }
  for (PassSpan& span : other.timeline.passes) {
    if (span.rank == 1) span.begin_ns *= 2, span.end_ns *= 2;
  }
  Nanoseconds end = 0;
  for (const PassSpan& span : other.timeline.passes) end = std::max(end, span.end_ns);
  PassSpan waits;
  waits.rank = 0;
  waits.begin_ns = one.timeline.step_ns;
  waits.end_ns = end;
  other.timeline.passes.push_back(waits);
  const TraceComparison comparison = compare_traces(one, other);
  double sum = 0;
  for (const double cause : comparison.causes_s) sum += cause;
  EXPECT_NEAR(comparison.difference_s(), comparison.predicted_step_s, 1e-9);
  EXPECT_NEAR(sum, comparison.difference_s(), 1e-9);
  EXPECT_GT(comparison.causes_s[static_cast<std::size_t>(Cause::kBubble)],
            0.4 * comparison.difference_s());
  EXPECT_EQ(comparison.measured_pipeline->limiting(), 1U);
}

// A step of very many operations has those of the micro-batches in the middle.
TEST(StageTimeline, LongStepsKeepAllPassesAndOperationsOfTheMiddle) {
  Plan plan = plan_of(64, 4, 4, 256);
  const PredictedStep step = predicted(plan);
  EXPECT_LT(step.timeline.spans.size(), 210'000U);
  EXPECT_GT(step.timeline.spans.size(), 100'000U);
  const StepTrace trace = step_trace_of(step.stages, step.timeline, "made");
  const StepSummary summary = summary_of(trace);
  EXPECT_GT(summary.closed_s, 0.5 * step.prediction.time.iteration_s);
  ASSERT_TRUE(summary.pipeline);
  EXPECT_NEAR(summary.pipeline->bubble(), step.prediction.pipeline.bubble, 1e-9);
  const Communication& groups = summary.communication.groups;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    EXPECT_NEAR(groups[g].exposed_s, step.prediction.exposed_s[g],
                0.01 * step.prediction.time.iteration_s)
        << g;
  }
  const TraceComparison comparison = compare_traces(trace, trace);
  for (const double cause : comparison.causes_s) EXPECT_NEAR(cause, 0, 1e-12);
  ASSERT_FALSE(comparison.left_out.empty());
  EXPECT_THAT(comparison.left_out.front(), HasSubstr("some micro-batches only"));
}

TEST(StageTimeline, ObservationsAreTheCostsOfTheirOperations) {
  const PredictedStep step = small(2, 2, PipelineKind::kOneForwardOneBackward, 1);
  const profiles::ObservationSet set = observations_of(read_step_trace(written(step)));
  CostModel costs(h100());
  std::vector<OpCost> op_costs;
  std::map<std::tuple<OpKind, std::int64_t, std::int64_t, std::int64_t>, double> alone_s;
  const auto key = [](OpKind kind, const Work& work) {
    return std::tuple(kind, work.m, work.n, work.k);
  };
  for (const Schedule& stage : step.stages) {
    costs.cost(stage, op_costs);
    for (std::size_t i = 0; i < stage.ops.size(); ++i)
      alone_s[key(stage.ops[i].kind, stage.ops[i].work)] = seconds_of(op_costs[i].alone_ns);
  }
  int seen = 0;
  for (const profiles::Observation& o : set.observations) {
    if (o.work.kind != WorkKind::kGemm || o.contended > 0) continue;
    const double expected = alone_s.at(key(o.op, o.work));
    EXPECT_NEAR(o.seconds, expected, 2e-3 * expected) << name_of(o.op);
    ++seen;
  }
  EXPECT_GT(seen, 100);
}

TEST(StageTimeline, APipelineIsExplainedByWhatChangesWouldBuy) {
  Plan plan = plan_of(16, 2, 2, 4);
  Predictor predictor(shipped("llama-3.2-1b"), h100());
  const Explanation explanation = explain(predictor, plan);
  EXPECT_EQ(explanation.base.stages.size(), 2U);
  EXPECT_FALSE(explanation.changes.empty());
}

TEST(StageTimeline, DamagedStagesAreErrorsThatNameTheFile) {
  const PredictedStep step = small(2, 2, PipelineKind::kOneForwardOneBackward, 1);
  const nlohmann::json document = nlohmann::json::parse(testing::get(written(step)));
  const std::filesystem::path path = testing::temp_folder() / "damaged.json";
  const auto refusal = [&](const std::function<void(nlohmann::json & event)>& change) {
    nlohmann::json changed = document;
    for (nlohmann::json& event : changed["traceEvents"]) change(event);
    write_file_atomically(path, changed.dump());
    try {
      summary_of(read_step_trace(path));
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(path.string()));
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refusal([](nlohmann::json& event) {
                if (event["name"] == "process_name") event["args"]["stage"] = -3;
              }),
              HasSubstr("no rank or stage"));
  EXPECT_THAT(refusal([](nlohmann::json& event) {
                if (event["name"] == "forward 1") event["args"]["micro_batch"] = -1;
              }),
              HasSubstr("chunk or micro-batch"));
  EXPECT_THAT(refusal([](nlohmann::json& event) {
                if (event["args"].contains("id")) event["args"]["id"] = 0;
              }),
              HasSubstr("operation 0 is both"));
  nlohmann::json longer = document;
  nlohmann::json plan = nlohmann::json::parse(longer["otherData"]["plan"].get<std::string>());
  plan["grad_accum"] = 1 << 19;
  longer["otherData"]["plan"] = plan.dump();
  write_file_atomically(path, longer.dump());
  try {
    schedules_of(read_step_trace(path));
    FAIL() << "more passes than were traced";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("passes a step, but the trace only"));
  }
  // Without some of its stages it is a trace without a pipeline.
  EXPECT_EQ(refusal([](nlohmann::json& event) {
              if (event["name"] == "process_name" && event["args"]["stage"] == 0)
                event["args"]["stage"] = 7;
            }),
            "");
}

}  // namespace
}  // namespace shardwright::sim
