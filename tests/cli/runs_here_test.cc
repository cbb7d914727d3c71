// SPDX-License-Identifier: Apache-2.0
// What this program says it trains itself: the command is one that `run` takes, and a refusal names
// what is in the way.

#include "cli/embed/verb_call.h"
#include "cli/flags/plan_flags.h"
#include "cli/render/words/plan.h"
#include "exec/layout.h"
#include "sim/core/executed_plan.h"
#include "tests/cli/program.h"
#include "tests/support/random_plans.h"

namespace shardwright::cli {
namespace {

json answer_of(const Words& words) {
  VerbCall call;
  EXPECT_EQ(call.run(words), 0) << call.messages();
  return json::parse(call.results());
}

json runs_here_of(const Words& flags) {
  Words words = joined({"predict", "--json"}, flags);
  return answer_of(words).at("runs_here");
}

TEST(RunsHere, FamiliesAreThoseOfTheExecutor) {
  for (const std::string_view family : kTrainedFamilies)
    EXPECT_NE(exec::find_family_form(family), nullptr) << family;
}

TEST(RunsHere, ARefusalNamesWhatIsInTheWayOfAModel) {
  const auto why_not = [](const std::string& model, const std::string& seq_len) {
    return runs_here_of({"--model", model, "--cluster", "dgx-h100", "--gpus", "8", "--stack",
                         "native", "--seq-len", seq_len})
        .at("why_not")
        .dump();
  };
  EXPECT_THAT(why_not("mistral-7b", "8192"), HasSubstr("expected at most 4096"));
  EXPECT_EQ(why_not("mistral-7b", "4096"), "null");
  EXPECT_THAT(why_not("phi-4-mini", "4096"), HasSubstr("yarn or longrope"));
  EXPECT_THAT(why_not("olmo-2-7b", "4096"), HasSubstr("which run does not train"));
}

/// `run` as far as every rank's memory, with the words of the command of an answer or, where there
/// is none, of the plan that was drawn.
Words run_of(const shardwright::testing::DrawnPlan& drawn, const json& command) {
  Words words;
  if (command.is_null()) {
    words = {"run", "--model", drawn.model, "--ranks", std::to_string(drawn.gpus)};
    for (const auto& [knob, value] : drawn.knobs) words.insert(words.end(), {"--" + knob, value});
    if (!drawn.has("param-dtype")) words.insert(words.end(), {"--param-dtype", "bf16"});
  } else {
    std::istringstream text(command.get<std::string>());
    for (std::string word; text >> word;) words.push_back(word);
    words.erase(words.begin());  // the program
  }
  words.insert(words.end(), {"--network", drawn.cluster, "--clock", "virtual", "--until",
                             "allocation", "--json"});
  return words;
}

// What predict says of a plan is what run says of it; what it calls possible starts, by its
// command, with the same plan.
TEST(RunsHere, RunSaysTheSame) {
  shardwright::testing::RandomPlans plans(7);
  int starts = 0, refused = 0;
  for (std::int64_t i = 0; i < shardwright::testing::asked_plans(120); ++i) {
    const shardwright::testing::DrawnPlan drawn = plans.draw();
    Words words = drawn.words();
    words.insert(words.begin(), {"predict", "--json"});
    VerbCall predict, run;
    if (predict.run(words) != 0) continue;
    const json prediction = json::parse(predict.results());
    const json& here = prediction.at("runs_here");
    const int code = run.run(run_of(drawn, here.at("command")));
    ASSERT_EQ(code, here.at("possible").get<bool>() ? 0 : 3) << drawn.text() << run.messages();
    if (code != 0) {
      ++refused;
      EXPECT_EQ(run.messages(), "error: " + here.at("why_not").get<std::string>() + "\n");
      continue;
    }
    ++starts;
    const json ran = json::parse(run.results()).at("plan");
    for (const auto& [key, value] : prediction.at("inputs").at("plan").items()) {
      if (key == "stack" || key == "allocator" || key == "packed_length") continue;
      EXPECT_EQ(ran.value(key, json()), value) << key << " of " << drawn.text();
    }
  }
  EXPECT_GT(starts, 5);
  EXPECT_GT(refused, 20);
}

// Every flag that says what predict predicts, with every value that a knob has.
TEST(RunsHere, RunTakesEveryPlanFlagOrRefusesItByName) {
  CommandLine line("shardwright", "");
  PlanFlags flags;
  Command predict = line.add_verb("predict", "");
  flags.declare(predict);
  const std::string model = (profiles::data_dir() / "examples" / "tiny-llama.json").string();
  const VerbOutline outline = line.outline().back();
  ASSERT_GT(outline.options.size(), 40);
  for (const OptionOutline& option : outline.options) {
    const std::string& flag = option.names.front();
    if (!flag.starts_with("--") || flag == "--help") continue;
    if (flag == "--model" || flag == "--cluster" || flag == "--plan") continue;  // files
    const auto& knobs = plan_knobs();
    const auto knob = std::find_if(knobs.begin(), knobs.end(),
                                   [&](const PlanKnob& k) { return k.name == flag.substr(2); });
    Words values = knob == knobs.end() ? Words() : shardwright::testing::values_of(*knob);
    if (values.empty()) values = {"2"};
    for (const std::string& value : values) {
      VerbCall call;
      Words words{"run",     "--model",    model, "--device", "host",
                  "--until", "allocation", flag,  value};
      if (call.run(words) == 0) continue;
      std::string key = flag == "--sum-shape" ? "sum-features" : flag.substr(2);
      std::replace(key.begin(), key.end(), '-', '_');
      EXPECT_THAT(call.messages(), ::testing::AnyOf(HasSubstr(flag), HasSubstr(key))) << value;
      EXPECT_THAT(call.messages(), ::testing::Not(HasSubstr("lists them"))) << value;
    }
  }
}

// What a machine lacks is said beside what the executor lacks, of what the executor runs.
TEST(RunsHere, WhatThisMachineLacksIsSaidApart) {
  const json many = runs_here_of(
      {"--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--gpus", "512", "--stack", "native"});
  EXPECT_TRUE(many.at("possible").get<bool>());
  EXPECT_THAT(many.at("why_not_here").get<std::string>(), HasSubstr("ranks is 512"));
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
