// SPDX-License-Identifier: Apache-2.0
#include "sim/uncertainty/intervals.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "profiles/profile.h"
#include "sim/predict.h"

namespace shardwright::sim {

namespace {

profiles::Profile some_profile(double memory_half_width) {
  profiles::Profile profile = profiles::load_profile("dgx-a100-80g", "torch-compile");
  profile.uncertainty.memory = {.more = memory_half_width, .less = 0};
  return profile;
}

// A plan that leaves what is asked has the verdict "fits", three bytes more have "tight".
TEST(Headroom, IsWhereTheVerdictChanges) {
  for (const double width : {0.005, 0.05, 0.3}) {
    const profiles::Profile profile = some_profile(width);
    const auto usable = static_cast<double>(profile.cluster.memory_bytes_per_rank(8));
    const double allowed = usable * (1 - asked_headroom(profile, 8));
    const auto runtime = static_cast<double>(profile.cluster.gpu.runtime_bytes);
    const auto verdict = [&](double total) {
      MemoryPrediction memory;
      memory.usable_bytes = static_cast<Bytes>(usable);
      memory.runtime_bytes = static_cast<Bytes>(runtime);
      memory.total_bytes = static_cast<Bytes>(total);
      set_memory_interval(memory, memory_widths(profile));
      return memory.verdict;
    };
    EXPECT_EQ(verdict(allowed), MemoryVerdict::kFits);
    EXPECT_EQ(verdict(allowed + 3), MemoryVerdict::kTight);
  }
}

TEST(Headroom, TightBeginsAndEndsWhereTheWidthsSay) {
  MemoryPrediction memory;
  memory.usable_bytes = 1'000'000'000;
  const auto verdict = [&](double log_room) {
    memory.total_bytes = static_cast<Bytes>(1e9 * std::exp(-log_room));
    set_memory_interval(memory, {.more = 0.1, .less = 0.2});
    return memory.verdict;
  };
  EXPECT_EQ(verdict(0.1 * kTenthBeyond + 1e-6), MemoryVerdict::kFits);
  EXPECT_EQ(verdict(0.1 * kTenthBeyond - 1e-6), MemoryVerdict::kTight);
  EXPECT_EQ(verdict(-0.2 * kSixTenthsBeyond + 1e-6), MemoryVerdict::kTight);
  EXPECT_EQ(verdict(-0.2 * kSixTenthsBeyond - 1e-6), MemoryVerdict::kDoesNotFit);
  const auto beyond = [](double share) {  // of a normal distribution, 95 % of it below 1
    return 0.5 * std::erfc(share * 1.6448536 / std::sqrt(2));
  };
  EXPECT_NEAR(beyond(kTenthBeyond), 0.1, 1e-3);
  EXPECT_NEAR(beyond(-kSixTenthsBeyond), 0.6, 1e-3);
}

TEST(Headroom, IsNoneWhereNoIntervalIsKnown) {
  EXPECT_EQ(asked_headroom(some_profile(0), 8), 0);
}

TEST(MemoryUncertainty, SoftwareThatNobodyMeasuredIsKnownLess) {
  const auto widths = [](const std::string& cluster, const std::string& stack) {
    return memory_widths(profiles::load_profile(cluster, stack));
  };
  const profiles::MemoryWidths measured = widths("dgx-a100-80g", "torch-compile");
  EXPECT_LT(measured.more, widths("dgx-a100-80g", "mpt-eager").more);
  EXPECT_LT(measured.less, widths("dgx-a100-80g", "mpt-eager").less);
  EXPECT_EQ(measured.more, widths("dgx-a100-80g", "torch-compile-2024-05").more);
  EXPECT_EQ(measured.more, widths("dgx-a100-80g", "native").more);  // planned to the byte
}

TEST(Intervals, LieAroundTheTimeByAFactor) {
  const auto interval = interval_around(2, std::log(1.25));
  EXPECT_NEAR(interval[0], 1.6, 1e-12);
  EXPECT_NEAR(interval[1], 2.5, 1e-12);
  EXPECT_EQ(interval_around(3, 0), (std::array<double, 2>{3, 3}));
}

}  // namespace

}  // namespace shardwright::sim
