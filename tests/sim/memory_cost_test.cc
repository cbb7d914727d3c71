// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/memory_cost.h"

#include <gtest/gtest.h>

namespace shardwright::sim {
namespace {

constexpr profiles::GpuRates kGpu{
    .peak_flops = 1, .sm_count = 1, .hbm_bytes_per_s = 2e12, .l2_bytes = 40e6};
constexpr profiles::MemoryParams kMemoryParams{
    .t1_s = 2e-6, .stream_efficiency = 0.8, .reduce_efficiency = 0.7, .l2_speedup = 2};

TEST(MemoryCost, LargeKernelsRunAtTheStreamRate) {
  EXPECT_DOUBLE_EQ(memory_time_s(kMemoryParams, kGpu, 1.6e9), 2e-6 + 1e-3);
  EXPECT_DOUBLE_EQ(memory_time_s(kMemoryParams, kGpu, 1.6e9, 0.5), 2e-6 + 2e-3);
}

TEST(MemoryCost, WhatFitsInCacheIsFasterAndTimeStillGrowsWithBytes) {
  const double bytes = 4e5;
  EXPECT_LT(memory_time_s(kMemoryParams, kGpu, bytes), 2e-6 + 0.51 * bytes / 1.6e12);
  double last = 0;
  for (double b = 1; b < 1e9; b *= 1.05) {
    const double t = memory_time_s(kMemoryParams, kGpu, b);
    ASSERT_GT(t, last) << b;
    last = t;
  }
}

TEST(MemoryCost, TrafficOfOthersSlowsItDownButNeverStopsIt) {
  const double alone = memory_time_s(kMemoryParams, kGpu, 1e9);
  EXPECT_NEAR(memory_time_s(kMemoryParams, kGpu, 1e9, 1, {0.8e12, 0.1}) - 2e-6, 2 * (alone - 2e-6),
              1e-9);
  EXPECT_NEAR(memory_time_s(kMemoryParams, kGpu, 1e9, 1, {9e12, 0.1}) - 2e-6, 10 * (alone - 2e-6),
              1e-9);
}

TEST(MemoryCost, NothingToMoveTakesNoTime) {
  EXPECT_EQ(memory_time_s(kMemoryParams, kGpu, 0), 0);
}

}  // namespace
}  // namespace shardwright::sim
