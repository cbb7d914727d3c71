// SPDX-License-Identifier: Apache-2.0
// How stages are shown: those that are alike in one line, groups that send, losses in order.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/render/prediction.h"

namespace shardwright::cli {
namespace {

sim::Prediction pipelined() {
  sim::Prediction p;
  p.time.iteration_s = 10;
  for (int s = 0; s < 4; ++s) {
    sim::StagePrediction& stage = p.stages.emplace_back();
    stage.stage = s;
    stage.layers = s == 3 ? 19 : 20;
    stage.compute_s = 7;
    stage.exposed_communication_s = 1;
    stage.host_s = 0.25;
    stage.bubble_s = 1.5;
    stage.peak_reserved_bytes = Bytes{60} << 30;
    stage.fits = true;
  }
  p.pipeline = {0.15, 32, 12};
  const auto at = [](CommGroup group) { return static_cast<std::size_t>(group); };
  p.sent[at(CommGroup::kTensor)].all_gather = 3e9;
  p.exposed_s[at(CommGroup::kTensor)] = 0.75;
  p.sent[at(CommGroup::kData)].all_gather = 1e9;
  p.exposed_s[at(CommGroup::kData)] = 0.25;
  return p;
}

TEST(ParallelLayout, OneStageAndOneGroupNeedNoTable) {
  sim::Prediction plain = pipelined();
  plain.stages.resize(1);
  plain.sent = {};
  EXPECT_EQ(stages_text(plain, Terminal{}), "");
}

TEST(ParallelLayout, StagesThatAreAlikeShareALine) {
  const std::string text = stages_text(pipelined(), Terminal{});
  EXPECT_NE(text.find("0 to 2"), std::string::npos) << text;
  EXPECT_NE(text.find("32 micro-batches"), std::string::npos) << text;
  EXPECT_NE(text.find("tensor"), std::string::npos) << text;
  EXPECT_EQ(text.find("context"), std::string::npos) << text;
}

TEST(ParallelLayout, JsonHasStagesPipelineAndGroups) {
  nlohmann::ordered_json document = {{"communication_bytes", nlohmann::ordered_json::object()}};
  add_stages(pipelined(), document);
  ASSERT_EQ(document["stages"].size(), 4U);
  EXPECT_EQ(document["stages"][3]["layers"], 19);
  EXPECT_EQ(document["stages"][0]["time_s"]["bubble"], 1.5);
  EXPECT_EQ(document["pipeline"]["bubble"], 0.15);
  EXPECT_EQ(document["pipeline"]["steady_state_after"], 12);
  for (const char* group : {"tensor", "pipeline", "context", "expert", "data"}) {
    EXPECT_TRUE(document["communication_bytes"].contains(group)) << group;
  }
  EXPECT_EQ(document["communication_bytes"]["tensor"], 3e9);
}

TEST(ParallelLayout, LossesComeLargestFirst) {
  const std::vector<Loss> losses = losses_of(pipelined());
  ASSERT_EQ(losses.size(), 5U);
  EXPECT_TRUE(std::any_of(losses.begin(), losses.end(),
                          [](const Loss& loss) { return loss.what == "nodes that vary"; }));
  EXPECT_EQ(losses[0].what, "bubble of the pipeline");
  EXPECT_EQ(losses[1].what, "exposed tensor communication");
  EXPECT_DOUBLE_EQ(losses[1].seconds, 0.75);
  for (std::size_t i = 1; i < losses.size(); ++i) {
    EXPECT_GE(losses[i - 1].seconds, losses[i].seconds);
  }
}

}  // namespace
}  // namespace shardwright::cli
