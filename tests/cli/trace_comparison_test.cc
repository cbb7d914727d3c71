// SPDX-License-Identifier: Apache-2.0
// Guards that the difference of two steps is explained without rest, and by the right cause.
#include "cli/trace/trace_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "sim/core/error.h"
#include "tests/support/not_empty.h"

namespace shardwright::cli {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kCompute = 2, kCommunication = 3;

/// A trace built slice by slice; times in microseconds.
struct TraceMaker {
  ReadTrace trace;

  explicit TraceMaker(std::int64_t ranks = 1) {
    for (std::int64_t r = 1; r <= ranks; ++r) {
      trace.processes[r] = ranks == 1 ? "predicted" : "measured, rank " + std::to_string(r - 1);
      trace.tracks[{r, kCompute}] = "compute";
      trace.tracks[{r, kCommunication}] = "communication";
    }
  }
  void slice(std::int64_t id, const std::string& kind, double begin, double duration,
             std::int64_t rank = 1, std::int64_t step = 0) {
    TraceSlice& slice = trace.slices.emplace_back();
    slice.id = id;
    slice.process = rank;
    slice.track = kind == "all_gather" ? kCommunication : kCompute;
    slice.name = "layer" + std::to_string(id) + ".forward." + kind;
    slice.kind = kind;
    slice.phase = "forward";
    slice.begin_us = begin;
    slice.duration_us = duration;
    slice.step = step;
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
  return compare_traces(predicted.trace, "predicted.json", measured.trace, "measured.json");
}

TEST(TraceComparisonTest, ASlowerKernelIsKernelTime) {
  TraceMaker predicted, measured;
  predicted.slice(1, "norm", 0, 10);
  predicted.slice(2, "attention", 10, 20);
  measured.slice(1, "norm", 0, 10);
  measured.slice(2, "attention", 12, 26);
  const TraceComparison comparison = compared(predicted, measured);
  EXPECT_NEAR(comparison.difference_s() * 1e6, 8, 1e-9);
  EXPECT_NEAR(cause(comparison, Cause::kKernelTime), 6, 1e-9);
  EXPECT_NEAR(cause(comparison, Cause::kHost), 2, 1e-9);
  EXPECT_NEAR(sum(comparison), 8, 1e-9);
  EXPECT_EQ(comparison.classes.front().kind, "attention");
  EXPECT_NEAR(comparison.share(comparison.classes.front().exposed_difference_s), 0.75, 1e-9);
}

TEST(TraceComparisonTest, ALongerMessageCountsOnlyWhereNothingHidesIt) {
  TraceMaker predicted, measured;
  for (TraceMaker* maker : {&predicted, &measured}) {
    maker->slice(1, "norm", 0, 100);
    maker->slice(2, "attention", 100, 100);
  }
  predicted.slice(3, "all_gather", 0, 50);
  measured.slice(3, "all_gather", 0, 90);
  EXPECT_EQ(compared(predicted, measured).difference_s(), 0);
  EXPECT_NEAR(sum(compared(predicted, measured)), 0, 1e-9);
  EXPECT_NEAR(cause(compared(predicted, measured), Cause::kMessageTime), 0, 1e-9);

  TraceMaker alone, longer;
  alone.slice(3, "all_gather", 0, 50);
  longer.slice(3, "all_gather", 0, 90);
  EXPECT_NEAR(cause(compared(alone, longer), Cause::kMessageTime), 40, 1e-9);
}

TEST(TraceComparisonTest, WaitingIsWhatRanksSpendBeyondTheLeast) {
  TraceMaker predicted, measured(2);
  predicted.slice(1, "all_gather", 0, 10);
  // Rank 1 arrives late: rank 0 waits for 30.
  for (const std::int64_t step : {1, 2, 3}) {
    measured.slice(1, "all_gather", 1000.0 * static_cast<double>(step), 40, 1, step);
    measured.slice(1, "all_gather", 1000.0 * static_cast<double>(step) + 30, 10, 2, step);
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
    maker->slice(1, "norm", 0, 10);
    maker->trace.slices.back().name = "layer0.forward.norm";
  }
  predicted.slice(2, "norm", 10, 10);
  measured.slice(2, "norm", 10, 14);
  measured.slice(3, "all_gather", 10, 14);
  predicted.slice(3, "all_gather", 10, 10);
  const TraceComparison comparison = compared(predicted, measured);
  EXPECT_NEAR(cause(comparison, Cause::kContention), 4, 1e-9);
  EXPECT_NEAR(cause(comparison, Cause::kKernelTime), 0, 1e-9);
}

TEST(TraceComparisonTest, MissingOperationsAndStragglersAreNamed) {
  TraceMaker predicted, measured(3);
  predicted.slice(1, "norm", 0, 10);
  predicted.slice(2, "scale", 10, 5);
  for (std::int64_t rank = 1; rank <= 3; ++rank) {
    measured.slice(1, "norm", 0, rank == 3 ? 15 : 10, rank);
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
  predicted.slice(1, "norm", 0, 10);
  predicted.slice(2, "attention", 10, 10);
  measured.slice(1, "attention", 0, 30);
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
      const auto ranks = 1 + static_cast<std::int64_t>(random() % 3);
      TraceMaker maker(ranks);
      for (std::int64_t step = 1; step <= 1 + static_cast<std::int64_t>(random() % 3); ++step) {
        for (std::int64_t rank = 1; rank <= ranks; ++rank) {
          double compute = 1000.0 * static_cast<double>(step), communication = compute;
          for (std::int64_t id = 0; id < 12; ++id) {
            if (random() % 8 == 0) continue;
            double& at = id % 3 == 0 ? communication : compute;
            at += draw(10);
            const double length = draw(30);
            maker.slice(id, id % 3 == 0 ? "all_gather" : "norm", at, length, rank, step);
            at += length;
          }
          maker.slice(20, "optimizer", std::max(compute, communication), 5, rank, step);
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

TEST(TraceComparisonTest, RefusesWhatHasNoOperations) {
  TraceMaker empty, full;
  full.slice(1, "norm", 0, 10);
  EXPECT_THROW(compared(empty, full), Error);
  EXPECT_THROW(compared(full, empty), Error);
}

}  // namespace
}  // namespace shardwright::cli
