// SPDX-License-Identifier: Apache-2.0
// Products on a processor: the closed form against a walk over what the kernel does, tile by tile.
#include "sim/cost/host_gemm_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "sim/cost/gemm_cost.h"

namespace shardwright::sim {
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

}  // namespace
}  // namespace shardwright::sim
