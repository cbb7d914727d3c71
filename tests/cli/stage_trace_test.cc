// SPDX-License-Identifier: Apache-2.0
// The trace that predict writes of a pipeline, read by compare, calibrate and report.

#include <cmath>
#include <map>

#include "tests/cli/program.h"
#include "tests/support/answer_page.h"

namespace shardwright::cli {
namespace {

const Words kTracedPlan = {
    "--model", "llama-3.2-1b", "--cluster", "dgx-h100",     "--gpus", "8",         "--tp",
    "2",       "--pp",         "2",         "--grad-accum", "4",      "--seq-len", "4096"};

ProgramResult done(const Words& words, const Words& more = {}) {
  ProgramResult result = shardwright(joined(words, more));
  EXPECT_EQ(result.exit_code, 0) << words.front() << ": " << result.err;
  return result;
}

/// The prediction, whose trace is written.
json traced(const std::string& path, const Words& more = {}) {
  Words words = joined({"predict", "--json", "--trace", path}, kTracedPlan);
  return json::parse(done(words, more).out);
}

TEST(StageTrace, ComparedWithItselfDiffersInNothingAndIsThePrediction) {
  const std::string path = temp_path("stages.json");
  const json prediction = traced(path);
  const json compared = json::parse(done({"compare", path, path, "--json"}).out);
  const json& step = compared.at("step_time_s");
  EXPECT_NEAR(step.at("predicted").get<double>(), prediction.at("iteration_time_s").get<double>(),
              2e-9);
  EXPECT_EQ(step.at("error"), 0);
  EXPECT_EQ(compared.at("plan_differences"), json::array());
  for (const json& cause : compared.at("causes")) EXPECT_EQ(cause.at("difference_s"), 0);
  for (const json& operation : compared.at("operations"))
    EXPECT_EQ(operation.at("difference_s"), 0);
  const json& bubble = compared.at("bubble").at("predicted");
  EXPECT_EQ(bubble, compared.at("bubble").at("measured"));
  EXPECT_NEAR(bubble.at("share").get<double>(),
              prediction.at("pipeline").at("bubble").get<double>(), 1e-9);
  EXPECT_NEAR(bubble.at("warm_up").get<double>() + bubble.at("steady").get<double>() +
                  bubble.at("drain").get<double>(),
              bubble.at("share").get<double>(), 1e-9);
  EXPECT_EQ(compared.at("limiting_stage").at("measured"), 1);  // it has the head
  EXPECT_GT(compared.at("exposed_by_group").at("measured").at("tensor").get<double>(), 0);
  EXPECT_GT(compared.at("transfer_s").at("measured").get<double>(), 0);
  EXPECT_EQ(compared.at("waiting_s").at("measured"), 0);
  EXPECT_EQ(compared.at("stages").at("predicted").size(), 2U);
}

TEST(StageTrace, IsATraceThatViewersDraw) {
  if (!std::filesystem::exists("/usr/bin/python3")) GTEST_SKIP() << "the check is a script";
  const std::string path = temp_path("stages.json");
  for (const Words& more : {Words{}, Words{"--pp-schedule", "zbv", "--virtual-stages", "2"},
                            Words{"--strategy", "ddp", "--stack", "megatron-core"}}) {
    traced(path, more);
    const ProgramResult checked =
        shardwright::testing::run_program({SHARDWRIGHT_SCRIPTS "/check_trace", path});
    EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
  }
}

TEST(StageTrace, ComparisonsNameThePipelineInEightyColumns) {
  const std::string path = temp_path("stages.json"), other = temp_path("other.json");
  traced(path);
  traced(other, {"--pp-schedule", "gpipe"});
  const std::string text = done({"compare", path, other}).out;
  for (const char* words :
       {"bubble, of the stages' time", "warm-up", "steady", "drain", "the stage with most to do",
        "tensor: exposed", "waiting for the last rank", "pp_schedule is \"gpipe\", not \"1f1b\""})
    EXPECT_THAT(text, HasSubstr(words));
  std::istringstream lines(
      text.substr(text.find("The pipeline"), text.find("By phase") - text.find("The pipeline")));
  for (std::string line; std::getline(lines, line);) {
    if (line.find('\xe2') == std::string::npos) {
      EXPECT_LE(line.size(), 80U) << line;
    }
  }
}

TEST(StageTrace, CalibratesToTheProfileThatPredictedIt) {
  const std::string path = temp_path("stages.json");
  traced(path);
  const json calibrated =
      json::parse(done({"calibrate", "--trace", path, "--base", "dgx-h100", "--stack",
                        "torch-compile", "--out", temp_path("profile.json"), "--json"})
                      .out);
  EXPECT_THAT(calibrated.at("notes").dump(), HasSubstr("is a predicted trace"));
  int groups = 0;
  for (const json& group : calibrated.at("groups")) {
    if (group.at("group") != "products" && group.at("group") != "attention" &&
        group.at("group") != "collectives") {
      continue;
    }
    ++groups;
    EXPECT_LT(group.at("before").at("mape").get<double>(), 1e-3) << group;
  }
  EXPECT_EQ(groups, 3);
  int values = 0;
  for (const json& value : calibrated.at("values")) {
    const std::string path_of = value.at("path");
    if (!value.at("determined").get<bool>() || !path_of.starts_with("cost.")) continue;
    if (path_of.starts_with("cost.contention")) continue;
    const double before = value.at("before").get<double>(), after = value.at("after").get<double>();
    EXPECT_NEAR(after / before, 1, 0.01) << path_of;
    ++values;
  }
  EXPECT_GT(values, 3);
}

// Between nodes only messages of the pipeline go.
TEST(StageTrace, MessagesBetweenStagesCalibrateTheNetwork) {
  const std::string path = temp_path("messages.json"), profile = temp_path("profile.json");
  done({"predict", "--model", "llama-3.2-1b", "--cluster", "dgx-h100", "--gpus", "16", "--tp", "8",
        "--pp", "2", "--virtual-stages", "2", "--stack", "megatron-core"},
       {"--grad-accum", "8", "--seq-len", "16384", "--set", "cluster.nic_efficiency=0.5", "--trace",
        path, "--json"});
  const json calibrated = json::parse(done({"calibrate", "--trace", path, "--base", "dgx-h100",
                                            "--stack", "megatron-core", "--out", profile, "--json"})
                                          .out);
  std::map<std::string, json> values;
  for (const json& value : calibrated.at("values")) values[value.at("path")] = value;
  const json& efficiency = values.at("cluster.nic_efficiency");
  EXPECT_TRUE(efficiency.at("determined").get<bool>()) << efficiency;
  EXPECT_EQ(efficiency.at("operations"), 2) << "messages of passes and of the tied embedding";
  EXPECT_NEAR(efficiency.at("after").get<double>(), 0.5, 0.01);
  EXPECT_THAT(get(profile), HasSubstr("\"receive\""));
}

TEST(StageTrace, ReportsDrawItWithAndWithoutItsPlan) {
  const std::string path = temp_path("stages.json");
  traced(path);
  done({"report", "--trace", path, "--out", temp_path("trace.html")});
  const json alone = ::shardwright::testing::answer_in(get(temp_path("trace.html")));
  EXPECT_TRUE(alone.at("answer").is_null());
  Words beside =
      joined({"report", "--measured", path, "--out", temp_path("both.html")}, kTracedPlan);
  done(beside);
  const json both = ::shardwright::testing::answer_in(get(temp_path("both.html")));
  EXPECT_EQ(both.at("measured"), alone.at("timelines").at(0));
  EXPECT_EQ(both.at("timelines").at(0).at("processes").size(),
            both.at("measured").at("processes").size());
  EXPECT_TRUE(both.at("comparison").contains("stages"));
}

// One stage's operations, and no pipeline.
TEST(StageTrace, OneRankOfItComparesToo) {
  const std::string path = temp_path("stages.json");
  traced(path);
  const json compared = json::parse(done({"compare", path, path, "--rank", "1", "--json"}).out);
  EXPECT_FALSE(compared.contains("bubble"));
  EXPECT_EQ(compared.at("step_time_s").at("error"), 0);
}

TEST(StageTrace, TwoOfThemMergeIntoOne) {
  const std::string path = temp_path("stages.json"), both = temp_path("both.json");
  traced(path);
  done({"compare", path, path, "--out", both});
  const std::string text = get(both);
  EXPECT_THAT(text, HasSubstr("measured: predicted, yafsdp: stage 1 of 2"));
  done({"compare", both, path});
}

}  // namespace
}  // namespace shardwright::cli
