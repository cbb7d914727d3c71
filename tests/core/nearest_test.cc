// SPDX-License-Identifier: Apache-2.0
#include "sim/core/nearest.h"

#include <gtest/gtest.h>

namespace shardwright {
namespace {

const std::vector<std::string> kVerbs{"predict", "tune", "run", "doctor", "--micro-batch"};

TEST(Nearest, FindsSlipsOfTheFinger) {
  EXPECT_EQ(nearest("predct", kVerbs), "predict");
  EXPECT_EQ(nearest("rpedict", kVerbs), "predict") << "neighbours swapped count once";
  EXPECT_EQ(nearest("doctor", kVerbs), "doctor");
  EXPECT_EQ(nearest("--microbatch", kVerbs), "--micro-batch");
  EXPECT_EQ(nearest("rum", kVerbs), "run");
}

TEST(Nearest, SaysNothingRatherThanNonsense) {
  EXPECT_EQ(nearest("frobnicate", kVerbs), std::nullopt);
  EXPECT_EQ(nearest("", kVerbs), std::nullopt);
  EXPECT_EQ(nearest("predict", {}), std::nullopt);
}

TEST(Nearest, TheFirstOfEquallyNearWins) {
  EXPECT_EQ(nearest("cat", {"cut", "car", "cat1"}), "cut");
}

TEST(DidYouMean, CompletesASentence) {
  EXPECT_EQ(did_you_mean("tun", kVerbs), ", did you mean 'tune'?");
  EXPECT_EQ(did_you_mean("frobnicate", kVerbs), "");
}

}  // namespace
}  // namespace shardwright
