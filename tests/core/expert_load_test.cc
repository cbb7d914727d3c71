// SPDX-License-Identifier: Apache-2.0
#include "sim/core/expert_load.h"

#include <cmath>

#include "tests/core/common.h"

namespace shardwright {
namespace {

TEST(ExpertLoads, OneRankHasAllRowsHoweverUnevenExpertsAre) {
  const BusiestRank alone = busiest_rank(0.4, 128, 1, 48);
  EXPECT_EQ(alone.of_layer, 1);
  EXPECT_EQ(alone.of_layers, 1);
  EXPECT_EQ(busiest_rank(0, 128, 8, 48).of_layer, 1);
}

TEST(ExpertLoads, ThePublishedLossOfEightRanksComesBack) {
  // arXiv 2604.19654: 128 experts on 8 ranks without an auxiliary loss lose 18.6 % of a layer.
  EXPECT_NEAR(1 - 1 / busiest_rank(0.387, 128, 8, 1).of_layer, 0.186, 0.002);
}

TEST(ExpertLoads, FewerExpertsARankVaryMoreAndManyLayersLess) {
  const double of_8 = busiest_rank(0.2, 128, 8, 48).of_layer;
  const double of_64 = busiest_rank(0.2, 128, 64, 48).of_layer;
  EXPECT_GT(of_8, 1);
  EXPECT_GT(of_64, of_8);
  const BusiestRank all = busiest_rank(0.2, 128, 8, 48);
  EXPECT_NEAR(all.of_layers - 1, (all.of_layer - 1) / std::sqrt(48.0), 1e-12);
}

TEST(ExpertLoads, MeasuredRowsAreAddedUpByRankAndLayer) {
  // Two ranks of two experts; each is the busier one in one layer.
  const BusiestRank measured = busiest_rank({{3, 3, 1, 1}, {1, 1, 2, 4}}, 2);
  EXPECT_DOUBLE_EQ(measured.of_layer, (1.5 + 1.5) / 2);
  EXPECT_DOUBLE_EQ(measured.of_layers, 1);
}

std::string problem(const std::string& text) {
  return testing::refusal_of([&] { static_cast<void>(expert_load("--expert-load", text)); });
}

TEST(ExpertLoads, AreWordsOrFilesThatHold) {
  EXPECT_EQ(expert_load("--expert-load", "balanced").routing, Routing::kBalanced);
  EXPECT_EQ(to_text(expert_load("--expert-load", "no-aux-loss")), "no-aux-loss");
  EXPECT_THAT(problem("even"), ::testing::HasSubstr("--expert-load is 'even', expected balanced"));
  const shardwright::testing::TempFolder folder;
  const std::string path = (folder.path() / "loads.json").string();
  const auto write = [&](const std::string& text) { std::ofstream(path) << text; };
  write(R"({"schema": "shardwright.expert-load/1.0", "layers": [{"rows": [1, 3]}]})");
  const ExpertLoad load = expert_load("--expert-load", path);
  ASSERT_TRUE(load.layers);
  EXPECT_EQ(busiest_rank(*load.layers, 2).of_layer, 1.5);
  EXPECT_EQ(to_text(load), path);
  write(
      R"({"schema": "shardwright.expert-load/1.0", "layers": [{"rows": [1, 3]}, {"rows": [1]}]})");
  EXPECT_THAT(problem(path), ::testing::HasSubstr("2 experts, as in the first layer"));
  write(R"({"schema": "shardwright.expert-load/1.0", "layers": [{"rows": [0, 0]}]})");
  EXPECT_THAT(problem(path), ::testing::HasSubstr("one of them above 0"));
  write(R"({"schema": "shardwright.expert-load/1.0", "layers": [{"rows": [1e308, 1e308]}]})");
  EXPECT_THAT(problem(path), ::testing::HasSubstr("with a finite sum"));
}

}  // namespace
}  // namespace shardwright
