// SPDX-License-Identifier: Apache-2.0
#include "sim/uncertainty/conformal.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "profiles/profile.h"
#include "sim/uncertainty/memory_uncertainty.h"

namespace shardwright::sim {
namespace {

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
