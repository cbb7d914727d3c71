// SPDX-License-Identifier: Apache-2.0
// Guards what a capped board loses and saves: clocks fall slower than its watts, and nothing is
// taken that no driver would set.
#include "profiles/prices/energy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiles/prices/power_limit.h"
#include "tests/support/refusal.h"

namespace shardwright::profiles {
namespace {

using ::testing::HasSubstr;

TEST(PowerLimit, ClocksFallSlowerThanWatts) {
  const Energy energy = load_energy();
  EXPECT_DOUBLE_EQ(clock_share(energy, "h100-80g", 700), 1);
  double last = 1;
  for (const double watts : {650.0, 600.0, 500.0, 400.0, 300.0}) {
    const double share = clock_share(energy, "h100-80g", watts);
    EXPECT_LT(share, last);
    EXPECT_GT(share, watts / 700);
    last = share;
  }
  // The H100 96 GB holds 500 W: published trainings show 0.87 of the clocks of 700 W.
  EXPECT_NEAR(clock_share(energy, "h100-80g", 500), 0.6207 / 0.7171, 0.05);
}

TEST(PowerLimit, LowersWhatFollowsTheClocksAndNothingElse) {
  const Energy energy = load_energy();
  const Profile full = load_profile("dgx-h100", "torch-compile");
  const auto overrides = power_limit_overrides(full, energy, 500);
  const Profile capped = load_profile("dgx-h100", "torch-compile", overrides);
  const double share = clock_share(energy, "h100-80g", 500);
  EXPECT_NEAR(capped.cost.gemm.values.sustained_factor,
              share * full.cost.gemm.values.sustained_factor, 1e-12);
  EXPECT_NEAR(capped.attention().backward_flops, share * full.attention().backward_flops, 1e3);
  EXPECT_EQ(capped.cost.gemm.values.e, full.cost.gemm.values.e);
  EXPECT_EQ(capped.cluster.gpu.hbm_bytes_per_s, full.cluster.gpu.hbm_bytes_per_s);
}

TEST(PowerLimit, RefusesWhatNoBoardHolds) {
  const Energy energy = load_energy();
  EXPECT_THAT(testing::refusal_of([&] { clock_share(energy, "h100-80g", 900); }),
              HasSubstr("--power-limit-watts is 900, expected 175 to 700, the board power of"));
  EXPECT_THAT(testing::refusal_of([&] { clock_share(energy, "h100-80g", 100); }),
              HasSubstr("expected 175 to 700"));
  EXPECT_THAT(testing::refusal_of([&] { clock_share(energy, "abacus", 100); }),
              HasSubstr("the board power of abacus is not known"));
}

TEST(Energy, ACapSavesOnlyWhatTheBoardDraws) {
  Energy energy = load_energy();
  energy.pue = 1;
  const double full = *energy.kwh("h100-80g", 1000);
  EXPECT_NEAR(full, 700 * energy.rest_of_node, 1e-9);
  energy.limit_watts = 500;
  EXPECT_NEAR(*energy.kwh("h100-80g", 1000), full - 200, 1e-9);
  energy.limit_watts = 5000;
  EXPECT_EQ(*energy.kwh("h100-80g", 1000), full);
  EXPECT_FALSE(energy.kwh("abacus", 1).has_value());
}

}  // namespace
}  // namespace shardwright::profiles
