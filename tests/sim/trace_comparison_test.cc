// SPDX-License-Identifier: Apache-2.0
// Guards that the difference of two steps is explained without rest, and by the right cause.
#include "sim/trace/trace_comparison.h"

#include <filesystem>

#include "sim/trace/observations.h"
#include "tests/sim/prediction.h"
#include "tests/support/files.h"
#include "tests/support/tiny_models.h"

namespace shardwright::sim {
namespace {

constexpr std::uint8_t kCompute = 0, kCommunication = 1;

/// A trace built span by span; times in microseconds.
struct TraceMaker {
  StepTrace trace;

  TraceMaker() {
    trace.name = "made.json";
    trace.timeline.streams = {"compute", "communication"};
    trace.roles = {StreamRole::kCompute, StreamRole::kCommunication};
  }
  void slice(OpId id, OpKind kind, double begin, double duration, std::int32_t rank = 0,
             std::int32_t step = 0) {
    Span span;
    span.id = id;
    span.rank = rank;
    span.step = step;
    span.stream = kind == OpKind::kAllGather ? kCommunication : kCompute;
    span.begin_ns = std::llround(begin * 1e3);
    span.end_ns = std::llround((begin + duration) * 1e3);
    trace.timeline.spans.push_back(span);
    trace.operations[id] = {fmt::format("layer{}.forward.{}", id, name_of(kind)), kind,
                            Phase::kForward, static_cast<std::int32_t>(id)};
  }
};

double cause(const TraceComparison& comparison, Cause which) {
  return comparison.causes_s[static_cast<std::size_t>(which)] * 1e6;
}

double sum(const TraceComparison& comparison) {
  double total = 0;
  for (const double seconds : comparison.causes_s) total += seconds;
  return total * 1e6;
}

TraceComparison compared(const TraceMaker& predicted, const TraceMaker& measured) {
  return compare_traces(predicted.trace, measured.trace);
}

TEST(TraceComparisonTest, ASlowerKernelIsKernelTime) {
  TraceMaker predicted, measured;
  predicted.slice(1, OpKind::kNorm, 0, 10);
  predicted.slice(2, OpKind::kAttention, 10, 20);
  measured.slice(1, OpKind::kNorm, 0, 10);
  measured.slice(2, OpKind::kAttention, 12, 26);
  const TraceComparison comparison = compared(predicted, measured);
  EXPECT_NEAR(comparison.difference_s() * 1e6, 8, 1e-9);
  EXPECT_NEAR(cause(comparison, Cause::kKernelTime), 6, 1e-9);
  EXPECT_NEAR(cause(comparison, Cause::kHost), 2, 1e-9);
  EXPECT_NEAR(sum(comparison), 8, 1e-9);
  EXPECT_EQ(comparison.classes.front().kind, OpKind::kAttention);
  EXPECT_NEAR(comparison.share(comparison.classes.front().exposed_difference_s), 0.75, 1e-9);
}

TEST(TraceComparisonTest, ALongerMessageCountsOnlyWhereNothingHidesIt) {
  TraceMaker predicted, measured;
  for (TraceMaker* maker : {&predicted, &measured}) {
    maker->slice(1, OpKind::kNorm, 0, 100);
    maker->slice(2, OpKind::kAttention, 100, 100);
  }
  predicted.slice(3, OpKind::kAllGather, 0, 50);
  measured.slice(3, OpKind::kAllGather, 0, 90);
  EXPECT_EQ(compared(predicted, measured).difference_s(), 0);
  EXPECT_NEAR(sum(compared(predicted, measured)), 0, 1e-9);
  EXPECT_NEAR(cause(compared(predicted, measured), Cause::kMessageTime), 0, 1e-9);

  TraceMaker alone, longer;
  alone.slice(3, OpKind::kAllGather, 0, 50);
  longer.slice(3, OpKind::kAllGather, 0, 90);
  EXPECT_NEAR(cause(compared(alone, longer), Cause::kMessageTime), 40, 1e-9);
}

TEST(TraceComparisonTest, WaitingIsWhatRanksSpendBeyondTheLeast) {
  TraceMaker predicted, measured;
  predicted.slice(1, OpKind::kAllGather, 0, 10);
  // Rank 1 arrives late: rank 0 waits for 30.
  for (const std::int32_t step : {1, 2, 3}) {
    measured.slice(1, OpKind::kAllGather, 1000.0 * step, 40, 0, step);
    measured.slice(1, OpKind::kAllGather, 1000.0 * step + 30, 10, 1, step);
  }
  const TraceComparison comparison = compared(predicted, measured);
  EXPECT_NEAR(cause(comparison, Cause::kMessageTime), 0, 1e-9);
  EXPECT_NEAR(cause(comparison, Cause::kWaiting), 15, 1e-9);  // the median of 30 and 0
  EXPECT_NEAR(sum(comparison), comparison.difference_s() * 1e6, 1e-9);
  EXPECT_EQ(comparison.measured_steps, 3);
}

TEST(TraceComparisonTest, AKernelBesideACollectiveIsContention) {
  TraceMaker predicted, measured;
  for (TraceMaker* maker : {&predicted, &measured}) {
    maker->slice(1, OpKind::kNorm, 0, 10);
    maker->trace.operations[1].name = "layer0.forward.norm";
  }
  predicted.slice(2, OpKind::kNorm, 10, 10);
  measured.slice(2, OpKind::kNorm, 10, 14);
  measured.slice(3, OpKind::kAllGather, 10, 14);
  predicted.slice(3, OpKind::kAllGather, 10, 10);
  const TraceComparison comparison = compared(predicted, measured);
  EXPECT_NEAR(cause(comparison, Cause::kContention), 4, 1e-9);
  EXPECT_NEAR(cause(comparison, Cause::kKernelTime), 0, 1e-9);
}

TEST(TraceComparisonTest, MissingOperationsAndStragglersAreNamed) {
  TraceMaker predicted, measured;
  predicted.slice(1, OpKind::kNorm, 0, 10);
  predicted.slice(2, OpKind::kScale, 10, 5);
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    measured.slice(1, OpKind::kNorm, 0, rank == 2 ? 15 : 10, rank);
  }
  const TraceComparison comparison = compared(predicted, measured);
  EXPECT_EQ(comparison.only_predicted, 1);
  EXPECT_NEAR(cause(comparison, Cause::kMissing), -5, 1e-9);
  ASSERT_EQ(comparison.slow_ranks.size(), 1U);
  EXPECT_EQ(comparison.slow_ranks[0].number, 2);
  EXPECT_NEAR(comparison.slow_ranks[0].by, 0.5, 1e-9);
}

TEST(TraceComparisonTest, TracesOfAnotherPlanAreComparedByClass) {
  TraceMaker predicted, measured;
  predicted.slice(1, OpKind::kNorm, 0, 10);
  predicted.slice(2, OpKind::kAttention, 10, 10);
  measured.slice(1, OpKind::kAttention, 0, 30);
  const TraceComparison comparison = compared(predicted, measured);
  EXPECT_THAT(comparison.plan_differences.at(0), HasSubstr("layer1.forward.attention"));
  EXPECT_TRUE(comparison.operations.empty());
  EXPECT_NEAR(cause(comparison, Cause::kKernelTime), 10, 1e-9);
}

/// Whatever the traces are, causes add up, and a trace differs from itself in nothing.
TEST(TraceComparisonTest, ExplainsRandomTracesWithoutRest) {
  std::mt19937 random(7);
  const auto draw = [&](int most) {
    return static_cast<double>(random() % static_cast<unsigned>(most));
  };
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<TraceMaker> makers;
    for (int side = 0; side < 2; ++side) {
      const auto ranks = 1 + static_cast<std::int32_t>(random() % 3);
      TraceMaker maker;
      const auto steps = 1 + static_cast<std::int32_t>(random() % 3);
      for (std::int32_t step = 1; step <= steps; ++step) {
        for (std::int32_t rank = 0; rank < ranks; ++rank) {
          double compute = 1000.0 * step, communication = compute;
          for (OpId id = 0; id < 12; ++id) {
            if (random() % 8 == 0) continue;
            double& at = id % 3 == 0 ? communication : compute;
            at += draw(10);
            const double length = draw(30);
            maker.slice(id, id % 3 == 0 ? OpKind::kAllGather : OpKind::kNorm, at, length, rank,
                        step);
            at += length;
          }
          maker.slice(20, OpKind::kOptimizer, std::max(compute, communication), 5, rank, step);
        }
      }
      makers.push_back(std::move(maker));
    }
    const TraceComparison comparison = compared(makers[0], makers[1]);
    EXPECT_NEAR(sum(comparison), comparison.difference_s() * 1e6, 1e-6) << trial;
    for (const TraceMaker& maker : makers) {
      const TraceComparison self = compared(maker, maker);
      EXPECT_EQ(self.difference_s(), 0);
      for (const double seconds : not_empty(self.causes_s)) EXPECT_EQ(seconds, 0);
      for (const ComparedOperation& operation : not_empty(self.operations)) {
        EXPECT_EQ(operation.difference_s(), 0);
      }
    }
  }
}

// Ranks differ: the median of all on both sides, or one of them on both.
TEST(TraceComparisonTest, TreatsBothSidesAlikeOrTakesOneRankOfBoth) {
  TraceMaker two;
  two.slice(1, OpKind::kNorm, 0, 10, 0);
  two.slice(1, OpKind::kNorm, 0, 30, 1);
  const TraceComparison self = compared(two, two);
  EXPECT_EQ(self.predicted_ranks, 2);
  EXPECT_EQ(self.measured_ranks, 2);
  ASSERT_EQ(self.operations.size(), 1U);
  EXPECT_NEAR(self.operations[0].predicted_s * 1e6, 20, 1e-9);
  EXPECT_EQ(self.operations[0].difference_s(), 0);

  const TraceComparison ranks = compare_traces(of_rank(two.trace, 0), of_rank(two.trace, 1));
  ASSERT_EQ(ranks.operations.size(), 1U);
  EXPECT_NEAR(ranks.operations[0].difference_s() * 1e6, 20, 1e-9);
  EXPECT_EQ(ranks.measured_ranks, 1);
  EXPECT_THROW(of_rank(two.trace, 2), Error);
  TraceMaker one;
  one.slice(1, OpKind::kNorm, 0, 10);
  EXPECT_EQ(of_rank(one.trace, 7).timeline.spans.size(), 1U) << "one rank speaks for all";
}

/// Two stages of two ranks each, a message a step: made after 100 us, on its way for 20, awaited by
/// `ready`.
struct MessageMaker : TraceMaker {
  explicit MessageMaker(double made = 100, double on_its_way = 20, double ready = 0) {
    for (const std::int32_t rank : {0, 1, 2, 3}) {
      trace.timeline.stages[rank] = {rank / 2, 1, "a layer"};
      for (const std::int32_t step : {0, 1}) {
        // The ranks of the second place send later.
        const double begin = 10'000.0 * step, late = rank % 2 == 0 ? 0 : 30;
        if (rank < 2) {
          pass(StageWork::kForward, rank, step, begin, made + late);
          slice(1, OpKind::kNorm, begin, made + late, rank, step);
          slice(2, OpKind::kSend, begin + made + late, 5, rank, step);
          pass(StageWork::kBackward, rank, step, begin + 300, 100);
          slice(3, OpKind::kNorm, begin + 300, 100, rank, step);
        } else {
          const double arrived = made + late + on_its_way;
          slice(11, OpKind::kReceive, begin + ready, arrived - ready, rank, step);
          pass(StageWork::kForward, rank, step, begin + arrived, 100);
          slice(12, OpKind::kNorm, begin + arrived, 100, rank, step);
        }
      }
    }
    for (auto& [id, operation] : trace.operations) operation.stage = id < 10 ? 0 : 1;
    message(2, 1);
    message(11, 0);
    trace.ready_ns = sent_messages(trace);
  }

 private:
  void pass(StageWork work, std::int32_t rank, std::int32_t step, double begin, double duration) {
    trace.timeline.passes.push_back({work, rank, step, 0, 0, std::llround(begin * 1e3),
                                     std::llround((begin + duration) * 1e3)});
  }
  void message(OpId id, std::int32_t peer) {
    TracedOperation& operation = trace.operations[id];
    operation.group = CommGroup::kPipeline;
    operation.peer = peer;
    operation.channel = 0;
  }
};

GroupTimes of_pipeline(const StageSummary& stage) {
  return stage.communication[static_cast<std::size_t>(CommGroup::kPipeline)];
}

TEST(TraceComparisonTest, AReceiveIsWaitingUntilItsMessageWasSentAndThenATransfer) {
  const StepSummary summary = summary_of(MessageMaker().trace);
  ASSERT_TRUE(summary.pipeline);
  const GroupTimes receives = of_pipeline(summary.pipeline->stages[1]);
  EXPECT_NEAR(receives.transfer_s * 1e6, 20, 1e-9);
  EXPECT_NEAR(receives.waiting_s * 1e6, 115, 1e-9);  // the median of 100 and 130
  EXPECT_NEAR(receives.exposed_s * 1e6, 20, 1e-9);
  const GroupTimes sends = of_pipeline(summary.pipeline->stages[0]);
  EXPECT_EQ(sends.transfer_s, 0) << "a message is counted where it is received";
  EXPECT_NEAR(sends.exposed_s * 1e6, 5, 1e-9);
  EXPECT_NEAR(summary.communication.transfer_s * 1e6, 10, 1e-9);
  EXPECT_NEAR(summary.communication.waiting_s * 1e6, 57.5, 1e-9);
  EXPECT_NEAR(summary.operations.at(11).duration_s * 1e6, 20, 1e-9);

  // Who asks when the message has long been there waits for nothing.
  const StepSummary late = summary_of(MessageMaker(10, 120, 90).trace);
  EXPECT_EQ(of_pipeline(late.pipeline->stages[1]).waiting_s, 0);
  EXPECT_NEAR(of_pipeline(late.pipeline->stages[1]).transfer_s * 1e6, 55, 1e-9);
}

TEST(TraceComparisonTest, ASlowerMessageIsMessageTimeAndALaterOneTheBubble) {
  const MessageMaker base, slower(100, 60), later(140);
  const TraceComparison message = compared(base, slower);
  EXPECT_NEAR(cause(message, Cause::kMessageTime), 20, 1e-9) << "of 40, the mean of two stages";
  EXPECT_NEAR(cause(message, Cause::kWaiting), 0, 1e-9);
  const TraceComparison waiting = compared(base, later);
  EXPECT_NEAR(cause(waiting, Cause::kMessageTime), 0, 1e-9);
  EXPECT_NEAR(waiting.measured_communication.waiting_s - waiting.predicted_communication.waiting_s,
              20e-6, 1e-15);
  for (const TraceComparison& comparison : {message, waiting})
    EXPECT_NEAR(sum(comparison), comparison.difference_s() * 1e6, 1e-9);
}

TEST(TraceComparisonTest, OneRankOfAPipelineKnowsWhenItsMessagesWereSent) {
  const StepTrace one = of_rank(MessageMaker().trace, 3);
  EXPECT_NEAR(summary_of(one).communication.waiting_s * 1e6, 130, 1e-9);
}

TEST(TraceComparisonTest, MessagesThatOnlyOneTraceHasAreNotMissing) {
  const MessageMaker measured;
  StepTrace predicted = measured.trace;  // stages stand still for messages
  std::erase_if(predicted.timeline.spans,
                [](const Span& span) { return span.id == 2 || span.id == 11; });
  const TraceComparison comparison = compare_traces(predicted, measured.trace);
  EXPECT_EQ(comparison.only_measured, 0);
  EXPECT_EQ(cause(comparison, Cause::kMissing), 0);
  EXPECT_NEAR(sum(comparison), comparison.difference_s() * 1e6, 1e-9);
}

TEST(TraceComparisonTest, CommunicationIsToldByGroup) {
  TraceMaker predicted, measured;
  predicted.slice(1, OpKind::kNorm, 0, 10);
  predicted.slice(2, OpKind::kAllGather, 5, 10);
  for (const std::int32_t rank : {0, 1}) {
    measured.slice(1, OpKind::kNorm, 0, 10, rank);
    measured.slice(2, OpKind::kAllGather, rank == 0 ? 5 : 9, rank == 0 ? 14 : 10, rank);
  }
  for (TraceMaker* maker : {&predicted, &measured})
    maker->trace.operations[2].group = CommGroup::kTensor;
  const TraceComparison comparison = compared(predicted, measured);
  const auto at = static_cast<std::size_t>(CommGroup::kTensor);
  const GroupTimes p = comparison.predicted_communication.groups[at];
  const GroupTimes m = comparison.measured_communication.groups[at];
  EXPECT_NEAR(p.exposed_s * 1e6, 5, 1e-9);
  EXPECT_NEAR(p.transfer_s * 1e6, 10, 1e-9);
  EXPECT_EQ(p.waiting_s, 0);
  EXPECT_NEAR(m.exposed_s * 1e6, 9, 1e-9);
  EXPECT_NEAR(m.transfer_s * 1e6, 10, 1e-9);
  EXPECT_NEAR(m.waiting_s * 1e6, 2, 1e-9);  // the median of 4 and 0
}

TEST(TraceComparisonTest, ExposedCommunicationCountsWaitsThatNoOperationHasOften) {
  TraceMaker measured;
  for (const std::int32_t step : {0, 1, 2}) {
    for (const std::int32_t id : {0, 1, 2})
      measured.slice(id, OpKind::kAllGather, 1000 * step + 100 * id, id == step ? 31 : 1, 0, step);
  }
  const StepSummary summary = summary_of(measured.trace);
  EXPECT_NEAR(
      summary.communication.groups[static_cast<std::size_t>(CommGroup::kData)].exposed_s * 1e6, 33,
      1e-9);
  EXPECT_NEAR(summary.operations.at(0).exposed_s * 1e6, 1, 1e-9);
}

// Two tensor groups: the second one has other work to do, whatever its ranks wait for.
TEST(TraceComparisonTest, RanksWaitForThoseOfTheirGroup) {
  TraceMaker measured;
  for (const std::int32_t rank : {0, 1, 2, 3}) {
    const double late = rank % 2 == 0 ? 0 : 4, more = rank < 2 ? 0 : 20;
    measured.slice(1, OpKind::kAllGather, late, 14 + more - late, rank);
  }
  measured.trace.operations[1].group = CommGroup::kTensor;
  const auto waiting_us = [&] { return summary_of(measured.trace).communication.waiting_s * 1e6; };
  EXPECT_NEAR(waiting_us(), 12, 1e-9) << "nobody knows who meets";
  const std::filesystem::path config = profiles::data_dir() / "examples" / "tiny-llama.json";
  Plan plan = shardwright::testing::tiny_plan(Strategy::kYafsdp, 4);
  plan.parallel.tp = 2;
  measured.trace.identity = {config.string(), shardwright::testing::get(config), plan, 4};
  measured.trace.origin.device = "host";
  EXPECT_NEAR(waiting_us(), 2, 1e-9);  // the median of 4 and 0
}

// Ranks come to the norm after 100 and 160 us and are through it at 170.
TEST(TraceComparisonTest, RanksWaitForEachOtherAtTheGradientNorm) {
  TraceMaker predicted, measured;
  predicted.slice(1, OpKind::kNorm, 0, 130);
  predicted.slice(2, OpKind::kGradientNorm, 130, 12);
  for (const std::int32_t rank : {0, 1}) {
    const double comes = rank == 0 ? 100 : 160;
    measured.slice(1, OpKind::kNorm, 0, comes, rank);
    measured.slice(2, OpKind::kGradientNorm, comes, 170 - comes, rank);
    measured.slice(3, OpKind::kGradientNorm, 170, 0, rank);  // a second chunk's
  }
  const auto norm = [](OpId id) { return id > 1; };
  for (const auto& [lane, met_ns] : norm_meetings(measured.trace.timeline, norm)) {
    EXPECT_EQ(met_ns, 160'000);
    measured.trace.ready_ns[{2, lane.second, lane.first}] = met_ns;
  }
  const TraceComparison comparison = compared(predicted, measured);
  EXPECT_NEAR(sum(comparison), 28, 1e-9);
  EXPECT_NEAR(cause(comparison, Cause::kWaiting), 30, 1e-9);     // the median of 60 and 0
  EXPECT_NEAR(cause(comparison, Cause::kKernelTime), -2, 1e-9);  // of the norm, 10 and not 12
  EXPECT_NEAR(cause(comparison, Cause::kHost), 0, 1e-9);
  const GroupTimes& data =
      comparison.measured_communication.groups[static_cast<std::size_t>(CommGroup::kData)];
  EXPECT_NEAR(data.waiting_s * 1e6, 30, 1e-9);
  EXPECT_NEAR(data.exposed_s * 1e6, 30, 1e-9);
}

TEST(TraceComparisonTest, RefusesWhatHasNoOperations) {
  TraceMaker empty, full;
  full.slice(1, OpKind::kNorm, 0, 10);
  EXPECT_THROW(compared(empty, full), Error);
  EXPECT_THROW(compared(full, empty), Error);
}

}  // namespace
}  // namespace shardwright::sim
