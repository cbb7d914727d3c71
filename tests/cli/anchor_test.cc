// SPDX-License-Identifier: Apache-2.0
// Guards `anchor` as a user meets it: a log or a step's time becomes a profile that predict, tune
// and size take with a narrower interval, and what cannot be used is said in one sentence.

#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

const Words kMeasuredPlan = {
    "--model", "llama-3.1-8b",  "--strategy", "fsdp2",          "--seq-len",
    "8192",    "--ckpt-layers", "all",        "--global-batch", "64"};

ProgramResult anchor_cli(const Words& arguments, const Words& more) {
  return shardwright(joined(arguments, more));
}

double half_of(const json& prediction) {
  const json& interval = prediction["iteration_time_interval_s"];
  return (interval[1].get<double>() - interval[0].get<double>()) /
         prediction["iteration_time_s"].get<double>() / 2;
}

TEST(AnchorVerb, ALogBecomesAProfileThatPredictTakes) {
  const std::filesystem::path& folder = temp_folder();
  const json before = json::parse(
      anchor_cli({"predict", "--cluster", "dgx-h100", "--gpus", "8", "--json"}, kMeasuredPlan).out);
  const double measured = before["iteration_time_s"].get<double>() * 1.08;
  {
    std::ofstream log(folder / "train.log");
    for (int step = 1; step <= 20; ++step) {
      log << " iteration " << step
          << "/ 100 | elapsed time per iteration (ms): " << (step <= 5 ? 9e4 : measured * 1e3)
          << " | lm loss: 2.0 |\n";
    }
  }
  const std::string out = (folder / "mine.json").string();
  const json anchored =
      document_of(anchor_cli({"anchor", "--cluster", "dgx-h100", "--gpus", "8", "--log",
                              (folder / "train.log").string(), "--out", out, "--json"},
                             kMeasuredPlan));
  EXPECT_EQ(anchored["schema"], "shardwright.anchor/1.0");
  EXPECT_EQ(anchored["log"], "Megatron");
  EXPECT_EQ(anchored["steps"], 15);
  EXPECT_NEAR(anchored["measured_s"].get<double>(), measured, 1e-4 * measured);
  EXPECT_FALSE(anchored["values"].empty());

  // The file answers what the verb answered, for the anchor's own size and for others.
  const json here = json::parse(
      anchor_cli({"predict", "--cluster", out, "--gpus", "8", "--json"}, kMeasuredPlan).out);
  EXPECT_NEAR(here["iteration_time_s"].get<double>(),
              anchored["after"]["iteration_time_s"].get<double>(), 1e-6 * measured);
  Words same_work = kMeasuredPlan;
  same_work.back() = "512";
  const json larger = json::parse(
      anchor_cli({"predict", "--cluster", out, "--gpus", "64", "--json"}, same_work).out);
  bool told = false;
  for (const json& size : anchored["sizes"]) {
    if (size["gpus"] != 64) continue;
    told = true;
    EXPECT_NEAR(size["after"]["iteration_time_s"].get<double>(),
                larger["iteration_time_s"].get<double>(), 1e-6 * measured);
  }
  EXPECT_TRUE(told);
  const json larger_before = json::parse(
      anchor_cli({"predict", "--cluster", "dgx-h100", "--gpus", "64", "--json"}, same_work).out);
  EXPECT_LT(half_of(larger), 0.85 * half_of(larger_before));

  // Another framework sees nothing of it.
  for (const char* key : {"iteration_time_s", "iteration_time_interval_s"}) {
    EXPECT_EQ(json::parse(anchor_cli({"predict", "--cluster", out, "--gpus", "64", "--stack",
                                      "torch-eager", "--json"},
                                     same_work)
                              .out)[key],
              json::parse(anchor_cli({"predict", "--cluster", "dgx-h100", "--gpus", "64", "--stack",
                                      "torch-eager", "--json"},
                                     same_work)
                              .out)[key]);
  }
  EXPECT_THAT(anchor_cli({"inspect", "profile", out}, {}).out,
              HasSubstr("15 steps of llama-3.1-8b on 8 GPUs (fsdp2)"));
}

TEST(AnchorVerb, AStepFarOutsideCarriesNothingAndWritesNothing) {
  const std::filesystem::path out = temp_folder() / "far_outside.json";
  const ProgramResult done = anchor_cli({"anchor", "--cluster", "dgx-h100", "--gpus", "8",
                                         "--step-time", "99", "--out", out.string()},
                                        kMeasuredPlan);
  EXPECT_EQ(done.exit_code, 6);
  EXPECT_THAT(done.out, HasSubstr("nothing is carried"));
  EXPECT_THAT(done.out, HasSubstr("Predicted as before: fsdp2"));
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(AnchorVerb, RefusesInOneSentence) {
  const std::filesystem::path empty = temp_folder() / "empty.log";
  std::ofstream(empty) << "no step\n";
  const Words on = {"anchor", "--cluster", "dgx-h100", "--gpus", "8"};
  const auto with = [&](Words more) {
    more.insert(more.end(), kMeasuredPlan.begin(), kMeasuredPlan.end());
    return anchor_cli(on, more);
  };
  expect_error(with({}), 2, "--log or --step-time is missing");
  expect_error(with({"--log", empty.string(), "--step-time", "1"}), 2, "both given");
  expect_error(with({"--log", empty.string()}), 3, "empty.log: holds no step");
  expect_error(with({"--step-time", "0"}), 3, "--step-time");
  expect_error(
      anchor_cli(on, {"--model", "llama-3.1-8b", "--strategy", "fsdp2,yafsdp", "--step-time", "1"}),
      2, "names 2 plans");
}

}  // namespace
}  // namespace shardwright::cli
