// SPDX-License-Identifier: Apache-2.0
#include "sim/uncertainty/headroom.h"

#include <gtest/gtest.h>

#include <cmath>

#include "sim/predict.h"

namespace shardwright::sim {
namespace {

profiles::Profile some_profile(double memory_half_width) {
  profiles::Profile profile = profiles::load_profile("dgx-a100-80g", "torch-compile");
  profile.uncertainty.memory = {.more = memory_half_width, .less = 0};
  return profile;
}

// A plan that leaves what is asked has the verdict "fits", one byte more has "tight".
TEST(Headroom, IsWhereTheVerdictChanges) {
  for (const double width : {0.005, 0.05, 0.3}) {
    const profiles::Profile profile = some_profile(width);
    const auto usable = static_cast<double>(profile.cluster.memory_bytes_per_rank(8));
    const double allowed = usable * (1 - asked_headroom(profile, 8));
    const auto runtime = static_cast<double>(profile.cluster.gpu.runtime_bytes);
    EXPECT_LE((allowed - runtime) * std::exp(width) + runtime, usable);
    EXPECT_GT((allowed + 3 - runtime) * std::exp(width) + runtime, usable);
  }
}

TEST(Headroom, IsNoneWhereNoIntervalIsKnown) {
  EXPECT_EQ(asked_headroom(some_profile(0), 8), 0);
}

}  // namespace
}  // namespace shardwright::sim
