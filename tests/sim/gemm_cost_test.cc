// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/gemm_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>

#include "profiles/gpu_cost.h"
#include "sim/cost/op_cost.h"

namespace shardwright::sim {

namespace {

using profiles::GemmParams;
using profiles::GpuRates;

constexpr GpuRates kA100{.peak_flops = 312e12,
                         .sm_count = 108,
                         .hbm_bytes_per_s = 2e12,
                         .hbm_efficiency = 0.8,
                         .l2_bytes = 40e6};

/// The header's formula as it stands there: every tile, every split, nothing pruned.
double reference(const GemmParams& p, const GpuRates& gpu, double m, double n, double k, int sms,
                 double batch) {
  const double hbm = gpu.hbm_bytes_per_s * gpu.hbm_efficiency;
  const std::array<std::array<double, 2>, 8> tiles{
      {{256, 128}, {128, 256}, {128, 128}, {256, 64}, {64, 256}, {128, 64}, {64, 128}, {64, 64}}};
  double best = std::numeric_limits<double>::infinity();
  for (const auto& [tm, tn] : tiles) {
    for (const double split : {1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0}) {
      const double blocks = std::ceil(m / tm) * std::ceil(n / tn) * split * batch;
      const double u = blocks / sms;
      const double waves = u <= 1 ? 1 : (1 - p.w) * u + p.w * std::ceil(u);
      const double rate = gpu.peak_flops / gpu.sm_count * p.e * std::pow(tm * tn / 32768, p.s);
      double t = waves * 2 * tm * tn * (k / split + p.k0) / rate;
      if (split > 1) t += p.split_k_s + 4 * split * m * n * batch / hbm;
      best = std::min(best, t);
    }
  }
  best *= 1 + p.throttle * best / (best + p.throttle_s);
  return p.t0_s + std::max(best, 2 * (m * k + k * n + m * n) * batch / hbm);
}

std::int64_t log_uniform(std::mt19937& random, double most) {
  return static_cast<std::int64_t>(
      std::exp(std::uniform_real_distribution<double>(0, std::log(most))(random)));
}

TEST(GemmCost, PruningNeverChangesTheResult) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> unit(0, 1);
  for (int i = 0; i < 20000; ++i) {
    GemmParams p;
    p.e = 0.5 + 0.5 * unit(random);
    p.k0 = 300 * unit(random);
    p.w = unit(random);
    p.s = 0.5 * unit(random);
    p.split_k_s = 5e-6 * unit(random);
    p.throttle = 0.2 * unit(random);
    const std::int64_t m = log_uniform(random, 70000);
    const std::int64_t n = log_uniform(random, 70000);
    const std::int64_t k = log_uniform(random, 70000);
    const std::int64_t batch = log_uniform(random, 64);
    const int sms = 1 + static_cast<int>(unit(random) * 107);
    const double expected = reference(p, kA100, static_cast<double>(m), static_cast<double>(n),
                                      static_cast<double>(k), sms, static_cast<double>(batch));
    ASSERT_NEAR(gemm_time_s(p, kA100, m, n, k, sms, batch) / expected, 1, 1e-12)
        << m << "x" << n << "x" << k << " batch " << batch << " on " << sms;
  }
}

TEST(GemmCost, MoreWorkNeverTakesLessAndMoreSmsNeverTakeMore) {
  const profiles::GpuCosts costs = profiles::load_gpu_costs();
  std::mt19937 random(2);
  for (const auto& [id, cost] : costs.gpus) {
    const GemmParams& p = cost.gemm.values;
    const GpuRates& gpu = cost.rates.values;
    for (int i = 0; i < 500; ++i) {
      const std::int64_t m = log_uniform(random, 20000);
      const std::int64_t n = log_uniform(random, 20000);
      const std::int64_t k = log_uniform(random, 20000);
      const std::int64_t more = 1 + log_uniform(random, 500);
      const double t = gemm_time_s(p, gpu, m, n, k, gpu.sm_count);
      ASSERT_GT(t, 0);
      ASSERT_GE(gemm_time_s(p, gpu, m + more, n, k, gpu.sm_count), t) << id;
      ASSERT_GE(gemm_time_s(p, gpu, m, n + more, k, gpu.sm_count), t) << id;
      ASSERT_GE(gemm_time_s(p, gpu, m, n, k + more, gpu.sm_count), t) << id;
      ASSERT_GE(gemm_time_s(p, gpu, m, n, k, gpu.sm_count - 16), t * (1 - 1e-12)) << id;
      GpuRates slower = gpu;
      slower.hbm_bytes_per_s *= 0.7;
      ASSERT_GE(gemm_time_s(p, slower, m, n, k, gpu.sm_count), t * (1 - 1e-12)) << id;
    }
  }
}

TEST(GemmCost, CollectiveThatTakesSmsCostsAWholeWaveWhenTheProductJustFitted) {
  GemmParams p;
  p.w = 1;
  p.s = 1;  // makes only the largest tile attractive
  p.split_k_s = 1;
  const std::int64_t m = 256 * 54;  // 54 x 2 tiles of 256 x 128: one wave of 108 SMs
  const double alone = gemm_time_s(p, kA100, m, 256, 8192, 108) - p.t0_s;
  const double beside = gemm_time_s(p, kA100, m, 256, 8192, 92) - p.t0_s;
  EXPECT_NEAR(beside / alone, 2, 1e-9);
}

TEST(GemmCost, EmptyProductsAreFreeAndSmCountsAreClamped) {
  const GemmParams p;
  EXPECT_EQ(gemm_time_s(p, kA100, 0, 4096, 4096, 108), 0);
  EXPECT_EQ(gemm_time_s(p, kA100, 4096, 4096, 0, 108), 0);
  EXPECT_EQ(gemm_time_s(p, kA100, 64, 64, 64, 5000), gemm_time_s(p, kA100, 64, 64, 64, 108));
  EXPECT_EQ(gemm_time_s(p, kA100, 64, 64, 64, -3), gemm_time_s(p, kA100, 64, 64, 64, 1));
}

TEST(GemmCost, SustainedLoadIsSlowerByItsFactorInTheLimit) {
  GemmParams p;
  p.sustained_factor = 0.8;
  const double burst = gemm_time_s(p, kA100, 16384, 16384, 16384, 108) - p.t0_s;
  const double held = gemm_time_s(sustained(p), kA100, 16384, 16384, 16384, 108) - p.t0_s;
  EXPECT_NEAR(held / burst, 1 / 0.8, 1e-9);
}

TEST(GemmCost, ATypeOfTwiceThePeakHalvesMainLoopsAndOperandsButNotPrologues) {
  GemmParams p;
  p.w = 0;
  const TypedGemm fp8 = typed_gemm(p, kA100, 2 * kA100.peak_flops, 1);
  const auto time = [&](std::int64_t k) {
    return gemm_time_s(fp8.params, fp8.rates, 8192, 8192, k, 108, 1, 1) - p.t0_s;
  };
  const auto bf16 = [&](std::int64_t k) {
    return gemm_time_s(p, kA100, 8192, 8192, k, 108) - p.t0_s;
  };
  // Twice as many steps of k take as long, and prologues in seconds stay.
  EXPECT_NEAR(time(16384) / bf16(8192), 1, 1e-9);
  EXPECT_GT(time(8192) / bf16(8192), 0.5);
  const TypedGemm slower = typed_gemm(p, kA100, 2 * kA100.peak_flops, 0.8);
  EXPECT_NEAR((gemm_time_s(slower.params, slower.rates, 8192, 8192, 1 << 20, 108, 1, 1) - p.t0_s) /
                  time(1 << 20),
              1 / 0.8, 1e-3);
}

}  // namespace

// Products on a processor: the closed form against a walk over what the kernel does, tile by tile.

namespace {

using profiles::GemmParams;
using profiles::GpuRates;

constexpr GpuRates kCores{.peak_flops = 4e11,
                          .sm_count = 4,
                          .hbm_bytes_per_s = 1e13,
                          .hbm_efficiency = 1,
                          .processor = true};
constexpr GemmParams kGemmParams{.t0_s = 1e-6, .e = 0.7, .k0 = 16, .w = 1, .s = 0.5};

/// Multiply-adds of all tiles, with what is read and laid out for them counted as such.
double walked(ProductLayout layout, std::int64_t m, std::int64_t n, std::int64_t k) {
  const HostTile tile = host_tiling(layout, false, m, n, kCores.sm_count).tile;
  double sum = 0;
  for (std::int64_t row = 0; row < m; row += tile.rows) {
    for (std::int64_t col = 0; col < n; col += tile.cols) {
      const auto rows = static_cast<double>(std::min(tile.rows, m - row));
      const std::int64_t cols = std::min(tile.cols, n - col);
      double taken = layout == ProductLayout::kTN ? kGemmParams.s * kGemmParams.k0 : 0;
      for (std::int64_t panel = 0; panel < cols; panel += 64)
        taken +=
            std::ceil(static_cast<double>(std::min<std::int64_t>(64, cols - panel)) / 16) * 16 +
            kGemmParams.k0;
      sum += rows * taken * static_cast<double>(k);
    }
  }
  return sum;
}

double one_core_s(ProductLayout layout, std::int64_t m, std::int64_t n, std::int64_t k) {
  return gemm_time_s(kGemmParams, kCores, m, n, k, 1, 1, 4, layout) - kGemmParams.t0_s;
}

TEST(HostGemmCost, CountsWhatTheKernelDoes) {
  std::mt19937 random(1);
  std::uniform_int_distribution<std::int64_t> size(1, 3000);
  for (int i = 0; i < 2000; ++i) {
    const std::int64_t m = size(random), n = size(random), k = size(random);
    for (const ProductLayout layout : kProductLayouts) {
      const double rate = kCores.peak_flops / kCores.sm_count * kGemmParams.e;
      EXPECT_NEAR(one_core_s(layout, m, n, k) / (2 * walked(layout, m, n, k) / rate), 1, 1e-9)
          << m << " x " << n << " x " << k;
    }
  }
}

TEST(HostGemmCost, LayoutsAndNarrowResultsDiffer) {
  const auto seconds = one_core_s;
  const ProductLayout forward = ProductLayout::kNT, weight = ProductLayout::kTN;
  EXPECT_EQ(seconds(forward, 128, 352, 128), seconds(ProductLayout::kNN, 128, 352, 128));
  EXPECT_GT(seconds(weight, 128, 352, 128), 1.05 * seconds(forward, 128, 352, 128));
  EXPECT_EQ(seconds(forward, 128, 88, 128), seconds(forward, 128, 96, 128)) << "whole registers";
  // Of as many multiply-adds those of few columns take longer.
  EXPECT_GT(seconds(weight, 352, 32, 128), 1.2 * seconds(weight, 88, 128, 128));
}

TEST(HostGemmCost, CoresThatWaitForTheLastTileCount) {
  const double one = one_core_s(ProductLayout::kNT, 2048, 2048, 512);
  const auto on = [](int cores) {
    return gemm_time_s(kGemmParams, kCores, 2048, 2048, 512, cores) - kGemmParams.t0_s;
  };
  EXPECT_NEAR(one / on(4), 4, 1e-9);
  const double thirds = one / on(3);
  EXPECT_LT(thirds, 3);
  EXPECT_GT(thirds, 2.9);
  EXPECT_EQ(gemm_time_s(kGemmParams, kCores, 64, 64, 512, 4),
            gemm_time_s(kGemmParams, kCores, 64, 64, 512, 1))
      << "one tile keeps one core";
}

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
