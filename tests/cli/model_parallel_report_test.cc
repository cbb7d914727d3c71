// SPDX-License-Identifier: Apache-2.0
// report and --trace of model-parallel plans, through the program.

#include <map>

#include "tests/cli/program.h"
#include "tests/support/answer_page.h"

namespace shardwright::cli {
namespace {

const Words kPlan = {"--model",        "llama-3-8b", "--cluster", "dgx-h100",
                     "--gpus",         "16",         "--tp",      "2",
                     "--pp",           "4",          "--seq-len", "4096",
                     "--global-batch", "16",         "--stack",   "megatron-core"};

TEST(ModelParallelReport, DrawsEveryStageAndTheOperationsOfOne) {
  const ProgramResult result =
      shardwright(joined({"report"}, kPlan, {"--out", temp_path("stages.html")}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json drawn =
      ::shardwright::testing::answer_in(get(temp_path("stages.html"))).at("timelines").at(0);
  EXPECT_THAT(drawn.at("processes").at(3).get<std::string>(),
              HasSubstr("stage 3 of 4 (layers 24 to 31, head"));
  std::map<std::string, std::vector<int>> processes;  // by role of a lane
  for (const nlohmann::json& lane : drawn.at("lanes"))
    processes[lane.at("role")].push_back(lane.at("process"));
  EXPECT_EQ(processes.at("stage"), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_THAT(processes.at("compute"), ::testing::Each(2));
  for (const char* words : {"bubble", "forward 5", "backward 5"})
    EXPECT_THAT(drawn.at("operations").dump(), HasSubstr(words));
}

TEST(ModelParallelReport, AStepOfVeryManyPassesStaysSmall) {
  output_of(shardwright(joined({"report", "--model", "llama-3.1-405b", "--cluster", "dgx-h100"},
                               {"--gpus", "1024", "--seq-len", "8192", "--tp", "8", "--pp", "8"},
                               {"--virtual-stages", "8", "--cp", "2", "--global-batch", "4096"},
                               {"--out", temp_path("large.html")})));
  EXPECT_LT(std::filesystem::file_size(temp_path("large.html")), 1000000U);
}

TEST(ModelParallelReport, StrategiesShareATrace) {
  const Words plan = {"predict", "--model", "llama-3-8b", "--cluster", "dgx-h100", "--gpus", "16"};
  output_of(shardwright(
      joined(plan, {"--stack", "torch-compile", "--strategy", "fsdp2,distributed-optimizer",
                    "--trace", temp_path("mixed.json")})));
  output_of(shardwright(
      joined(plan, {"--stack", "megatron-core", "--pp", "2", "--grad-accum", "4", "--strategy",
                    "distributed-optimizer,ddp", "--trace", temp_path("two.json")})));
  EXPECT_THAT(get(temp_path("two.json")), HasSubstr("predicted, ddp: stage 1 of 2"));
}

TEST(ModelParallelReport, ExplanationNamesWhatTheBusiestStageWaitsFor) {
  const json document =
      document_of(shardwright(joined({"predict"}, kPlan, {"--explain", "--json"})));
  std::vector<std::string> named;
  double lost = 0;
  for (const nlohmann::json& loss : document.at("explanation").at("losses")) {
    named.push_back(loss.at("what"));
    lost += loss.at("seconds").get<double>();
  }
  EXPECT_THAT(named, ::testing::IsSupersetOf(
                         {"bubble of the pipeline", "exposed tensor communication",
                          "exposed pipeline communication", "exposed data communication", "host"}));
  // What is not lost is computing: parts add up to the step.
  const double compute = document.at("time_s").at("compute");
  EXPECT_NEAR(lost + compute, document.at("iteration_time_s"), 1e-6);
}

}  // namespace
}  // namespace shardwright::cli
