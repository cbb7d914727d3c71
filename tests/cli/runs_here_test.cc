// SPDX-License-Identifier: Apache-2.0
// What this program says it trains itself: the command is one that `run` takes, and a refusal names
// what is in the way.
#include "cli/render/words/runs_here.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/embed/verb_call.h"
#include "exec/family.h"
#include "sim/core/executed_plan.h"

namespace shardwright::cli {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

json answer_of(const std::vector<std::string>& words) {
  VerbCall call;
  EXPECT_EQ(call.run(words), 0) << call.messages();
  return json::parse(call.results());
}

json runs_here_of(const std::vector<std::string>& flags) {
  std::vector<std::string> words{"predict", "--json"};
  words.insert(words.end(), flags.begin(), flags.end());
  return answer_of(words).at("runs_here");
}

TEST(RunsHere, FamiliesAreThoseOfTheExecutor) {
  for (const std::string_view family : kTrainedFamilies)
    EXPECT_NE(exec::find_family_form(family), nullptr) << family;
}

TEST(RunsHere, TheCommandIsOneThatRunTakes) {
  const json here =
      runs_here_of({"--model", "gpt2", "--cluster", "host", "--gpus", "2", "--seq-len", "32",
                    "--strategy", "yafsdp", "--ckpt-layers", "1", "--param-dtype", "fp32"});
  EXPECT_TRUE(here.at("possible").get<bool>());
  EXPECT_TRUE(here.at("why_not").is_null());
  EXPECT_THAT(here.at("command").get<std::string>(), HasSubstr(" --dropout none"));
  std::istringstream command(here.at("command").get<std::string>());
  std::vector<std::string> words;
  for (std::string word; command >> word;) words.push_back(word == "FILE" ? "synthetic" : word);
  ASSERT_EQ(words.front(), "shardwright");
  words.erase(words.begin());
  words.push_back("--show-settings");
  VerbCall call;
  EXPECT_EQ(call.run(words), 0) << call.messages();
  EXPECT_THAT(call.results(), AllOf(HasSubstr("strategy = yafsdp"), HasSubstr("ranks = 2")));
}

TEST(RunsHere, LayersInFp8AreTrained) {
  const json here =
      runs_here_of({"--model", "llama-3-8b", "--cluster", "dgx-h100", "--gpus", "8", "--stack",
                    "native", "--precision", "fp8", "--fp8-recipe", "rowwise"});
  EXPECT_TRUE(here.at("possible").get<bool>()) << here;
  EXPECT_THAT(here.at("command").get<std::string>(),
              HasSubstr(" --precision fp8 --fp8-recipe rowwise"));
}

TEST(RunsHere, TensorRanksAreTrained) {
  const json here = runs_here_of({"--model", "llama-3-8b", "--cluster", "dgx-h100", "--gpus", "8",
                                  "--stack", "native", "--tp", "4", "--sp", "off"});
  EXPECT_TRUE(here.at("possible").get<bool>()) << here;
  EXPECT_THAT(here.at("command").get<std::string>(), HasSubstr(" --tp 4 --sp off"));
  EXPECT_THAT(here.at("command").get<std::string>(), ::testing::Not(HasSubstr("rank-order")));
}

TEST(RunsHere, ARefusalNamesWhatIsInTheWay) {
  const auto why_not = [](const std::vector<std::string>& more) {
    std::vector<std::string> flags{"--model", "llama-3-8b", "--cluster", "dgx-h100", "--gpus", "8"};
    flags.insert(flags.end(), more.begin(), more.end());
    return runs_here_of(flags).at("why_not").get<std::string>();
  };
  EXPECT_THAT(why_not({"--cp", "2"}), HasSubstr("cp is 2, which run does not do"));
  EXPECT_THAT(why_not({"--tp", "2", "--precision", "fp8"}),
              HasSubstr("precision is fp8, but tp is 2"));
  EXPECT_THAT(why_not({"--lora", "8"}), HasSubstr("lora is 8"));
  // The order of `run`: the precision first.
  EXPECT_THAT(why_not({"--tp", "2", "--precision", "fp8", "--fp8-recipe", "block"}),
              HasSubstr("fp8_recipe is block, which run does not train with"));
  EXPECT_THAT(why_not({"--precision", "fp8", "--fp8-recipe", "block"}),
              HasSubstr("expected tensorwise, rowwise or mxfp8"));
  EXPECT_THAT(why_not({"--strategy", "fsdp2-hpz"}), HasSubstr("fsdp2-hpz"));
  EXPECT_THAT(why_not({"--offload", "optimizer"}), HasSubstr("on its device"));
  const auto of_model = [](const std::string& name, const std::string& seq_len) {
    const json here = runs_here_of({"--model", name, "--cluster", "dgx-h100", "--gpus", "8",
                                    "--stack", "native", "--seq-len", seq_len});
    return here.at("possible").get<bool>() ? "" : here.at("why_not").get<std::string>();
  };
  EXPECT_THAT(of_model("mistral-7b", "8192"), HasSubstr("expected at most 4096"));
  EXPECT_EQ(of_model("mistral-7b", "4096"), "");
  EXPECT_THAT(of_model("phi-4-mini", "4096"), HasSubstr("yarn or longrope"));
  EXPECT_THAT(of_model("olmo-2-7b", "4096"), HasSubstr("which run does not train"));
}

TEST(RunsHere, TuneNamesItsOwnBestPlanInsideTheInterval) {
  const json document =
      answer_of({"tune", "--model", "llama-3-8b", "--cluster", "dgx-h100", "--gpus", "8",
                 "--seq-len", "8192", "--global-batch", "64", "--threads", "1", "--json"});
  const json& best = document.at("best").at("prediction");
  ASSERT_TRUE(document.contains("runs_here"));
  const json& here = document.at("runs_here");
  EXPECT_EQ(here.at("plan").at("stack"), "native");
  EXPECT_THAT(here.at("command").get<std::string>(), HasSubstr("shardwright run --model"));
  EXPECT_LE(1 + here.at("cost").get<double>(),
            best.at("iteration_time_interval_s")[1].get<double>() /
                best.at("iteration_time_s").get<double>());
}

}  // namespace
}  // namespace shardwright::cli
