// SPDX-License-Identifier: Apache-2.0
// Guards that the difference of two steps is explained without rest, and by the right cause.
#include "sim/trace/trace_comparison.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "sim/core/base/error.h"
#include "tests/support/not_empty.h"

namespace shardwright::sim {
namespace {

using ::testing::HasSubstr;

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

TEST(TraceComparisonTest, RefusesWhatHasNoOperations) {
  TraceMaker empty, full;
  full.slice(1, OpKind::kNorm, 0, 10);
  EXPECT_THROW(compared(empty, full), Error);
  EXPECT_THROW(compared(full, empty), Error);
}

}  // namespace
}  // namespace shardwright::sim
