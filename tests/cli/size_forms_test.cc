// SPDX-License-Identifier: Apache-2.0
// One answer in every form: the terminal, the document, the page for whoever signs and `predict` of
// the plan say the same, and published trainings lie where it says.
#include <fmt/core.h>

#include <algorithm>
#include <sstream>

#include "cli/render/text/quantity.h"
#include "tests/cli/size_fixture.h"
#include "tests/support/answer_page.h"

namespace shardwright::cli {
namespace {

using of_size::size;
using of_size::sized;
using of_size::small_size;

/// Rows of the terminal's table of the best sizes: cluster and GPUs.
Words rows_of_best(const std::string& text) {
  Words rows;
  std::istringstream lines(text.substr(text.find("The best size of each cluster")));
  std::string line;
  for (int i = 0; i < 3; ++i) std::getline(lines, line);  // heading, columns, rule
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string cluster, mark, gpus;
    words >> cluster >> mark;
    gpus = mark;
    if (mark == "*" || mark == "?") words >> gpus;
    if (gpus.empty() ||
        !std::all_of(gpus.begin(), gpus.end(), [](char c) { return c >= '0' && c <= '9'; }))
      break;
    std::string& row = rows.emplace_back(cluster);
    row.append(" ").append(gpus);
    if (mark == "*") row.append(" *");
  }
  return rows;
}

// Whoever decides reads the terminal, the page or what an assistant made of the document: none may
// have another answer than the others.
TEST(Size, EveryFormHasTheSameAnswer) {
  Words flags = small_size({"--deadline", "30d", "--clusters", "dgx-h100,p4d,dgx-b200"});
  flags.erase(flags.begin() + 4, flags.begin() + 6);  // --clusters of small_size
  const std::string page_file = temp_path("size.html");
  flags.insert(flags.end(), {"--out", page_file});
  const json document = sized(flags);
  const std::string text = size(flags).out;
  const std::string page = shardwright::testing::get(page_file);
  // But for the seconds that the two searches took.
  json held = shardwright::testing::answer_in(page).at("answer");
  for (const char* key :
       {"options", "pareto", "best_of_each", "recommended", "summary", "break_even"})
    EXPECT_EQ(held.at(key), document.at(key)) << key;
  Words rows;
  for (const json& option : document.at("best_of_each")) {
    rows.push_back(fmt::format("{} {}{}", option.at("cluster").get<std::string>(),
                               option.at("gpus").get<int>(),
                               option.at("recommended").get<bool>() ? " *" : ""));
  }
  EXPECT_THAT(rows_of_best(text), ::testing::ElementsAreArray(rows));
  EXPECT_EQ(
      std::count_if(rows.begin(), rows.end(), [](const auto& row) { return row.ends_with("*"); }),
      1);
  const auto squeezed = [](std::string words) {
    std::replace(words.begin(), words.end(), '\n', ' ');
    return words;
  };
  EXPECT_LE(document.at("summary").size(), 5U);
  for (const json& sentence : document.at("summary"))
    EXPECT_THAT(squeezed(text), HasSubstr(sentence.get<std::string>()));
  EXPECT_THAT(page, HasSubstr(document.at("summary")[0].get<std::string>()));
  // Break-evens stand by their distance to today's prices.
  double distance = 0;
  for (const json& even : document.at("break_even")) {
    EXPECT_GE(even.at("distance").get<double>(), distance);
    distance = even.at("distance");
  }
}

// Whoever names GPUs on which nothing was measured is answered, and told in every form.
TEST(Size, GpusOnWhichNothingWasMeasuredAreMarked) {
  Words flags = small_size({"--deadline", "90d", "--clusters", "dgx-h100,mi300x-8x400"});
  flags.erase(flags.begin() + 4, flags.begin() + 6);  // --clusters of small_size
  const std::string page_file = temp_path("marked.html");
  flags.insert(flags.end(), {"--out", page_file});
  const Words first = [&] { return joined(flags, {"--price", "mi300x-8x400=0.1"}); }();
  EXPECT_THAT(sized(first).at("summary")[0].get<std::string>(),
              HasSubstr("Nothing was measured on these GPUs"));
  flags.insert(flags.end(), {"--price", "mi300x-8x400=9"});
  const json document = sized(flags);
  EXPECT_EQ(document.at("recommended").at("cluster"), "dgx-h100");
  EXPECT_THAT(document.at("words").dump(), Not(HasSubstr("Next best elsewhere")));
  EXPECT_THAT(document.at("summary").dump(), HasSubstr("(now 9.00, nothing measured)"));
  EXPECT_THAT(size(flags).out, HasSubstr("mi300x-8x400 ?"));
  const json best = shardwright::testing::answer_in(shardwright::testing::get(page_file))
                        .at("answer")
                        .at("best_of_each");
  EXPECT_EQ(best.at(1).at("cluster"), "mi300x-8x400");
  EXPECT_TRUE(best.at(1).at("estimate_only").get<bool>());
}

// "Nothing does" is no word for the one size that was asked about.
TEST(Size, OneSizeIsNotTakenForAll) {
  const json document = sized(small_size({"--deadline", "30d", "--gpus", "64"}));
  const std::string chance = document.at("summary")[3];
  EXPECT_THAT(chance, HasSubstr("It misses the deadline of 30 days in about"));
  EXPECT_THAT(chance, Not(HasSubstr("nothing meets")));
}
// Published trainings of the very model stand beside the answer.
TEST(Size, PublishedTrainingsOfTheModelAreTold) {
  const json document = sized(
      {"--model", "llama-3-8b", "--tokens", "15e12", "--clusters", "dgx-h100", "--gpus", "512"});
  ASSERT_GE(document.at("published").size(), 1U);
  EXPECT_THAT(document.at("words").dump(), HasSubstr("llama-3-8b: 15T tokens, 1.3 M GPU hours"));
  const double published = 1.3e6, hours = document.at("options")[0].at("gpu_hours");
  const double days = document.at("options")[0].at("days");
  const json& interval = document.at("options")[0].at("days_interval");
  EXPECT_GT(hours * interval[1].get<double>() / days, published);
  EXPECT_LT(hours * interval[0].get<double>() / days, published);
  EXPECT_LT(interval[1].get<double>() / interval[0].get<double>(), 2.7);
}

// What teams published of their trainings, asked with their precision but for the best layout and
// batch, lies in intervals that tell a buyer something: DeepSeek-V3 (pre-training), Llama 3.1
// 405B, Llama 3 70B and 8B.
TEST(Size, PublishedTrainingsLieInNarrowIntervals) {
  struct Training {
    const char *model, *tokens, *seq_len, *cluster, *gpus;
    double gpu_hours;
    Words more;
  };
  const std::vector<Training> trainings{
      {"deepseek-v3",
       "14.8T",
       "4k",
       "h800-8x400",
       "2048",
       2.664e6,
       {"--precision", "fp8", "--fp8-recipe", "block", "--global-batch", "15360"}},
      {"deepseek-v3",
       "14.8T",
       "4k",
       "h800-8x400",
       "2048",
       2.664e6,
       {"--precision", "fp8", "--fp8-recipe", "block"}},
      {"llama-3.1-405b", "15.6T", "8k", "dgx-h100", "16384", 30.84e6, {}},
      {"llama-3-70b", "15T", "8k", "dgx-h100", "8192", 6.4e6, {}},
      {"llama-3-8b", "15T", "8k", "dgx-h100", "512", 1.3e6, {}}};
  for (const Training& one : trainings) {
    Words flags = joined({"--model", one.model, "--tokens", one.tokens, "--seq-len", one.seq_len,
                          "--clusters", one.cluster, "--gpus", one.gpus},
                         one.more);
    const json option = sized(flags).at("options")[0];
    const double hours = 24 * option.at("gpus").get<double>();
    const double low = hours * option.at("days_interval")[0].get<double>();
    const double high = hours * option.at("days_interval")[1].get<double>();
    EXPECT_LE(low, one.gpu_hours) << one.model;
    EXPECT_GE(high, one.gpu_hours) << one.model;
    EXPECT_LT(high / low, 2.7) << one.model;
  }
}

// DeepSeek-V3 on the layout and in the arithmetic that its report gives (arXiv 2412.19437, 3.1 to
// 3.3: DualPipe over 16 stages, 64-way expert parallelism, weights in fp8, moments in bf16, even
// loads): what put-off weight gradients keep leaves room for it.
TEST(Size, DeepSeekV3FitsAsItWasTrained) {
  const json option =
      sized({"--model",       "deepseek-v3", "--tokens",       "14.8T",    "--seq-len",      "4k",
             "--clusters",    "h800-8x400",  "--gpus",         "2048",     "--precision",    "fp8",
             "--fp8-recipe",  "block",       "--fp8-params",   "on",       "--pp",           "16",
             "--tp",          "1",           "--pp-schedule",  "dualpipe", "--ep",           "64",
             "--ep-overlap",  "on",          "--dispatcher",   "deepep",   "--moment-dtype", "bf16",
             "--expert-load", "balanced",    "--global-batch", "15360"})
          .at("options")[0];
  const double hours = 24 * option.at("gpus").get<double>();
  EXPECT_LT(hours * option.at("days_interval")[0].get<double>(), 2.664e6);
  EXPECT_GT(hours * option.at("days_interval")[1].get<double>(), 2.664e6);
}

// Steps of a published training of the very model are among those that `size` may choose: it is not
// worse than with that batch given.
TEST(Size, TheBatchOfThePublishedTrainingIsAmongItsOwn) {
  const auto days = [](const Words& more) {
    Words flags =
        joined({"--model", "deepseek-v3", "--tokens", "14.8T", "--seq-len", "4k", "--clusters",
                "h800-8x400", "--gpus", "2048", "--precision", "fp8", "--fp8-recipe", "block"},
               more);
    return sized(flags).at("options")[0].at("days").get<double>();
  };
  EXPECT_LT(days({}), 1.001 * days({"--global-batch", "15360"}));
}

// `tune` of the size that is recommended, with its batch, finds nothing faster.
TEST(Size, TuneFindsNothingFasterForItsAnswer) {
  const json option = sized({"--model", "llama-3-70b", "--tokens", "15e12", "--clusters",
                             "dgx-h100", "--gpus", "2048"})
                          .at("recommended");
  const double sequences = option.at("tokens_per_step").get<double>() / 8192;
  const ProgramResult result = run_program(
      {SHARDWRIGHT_BINARY, "tune", "--model", "llama-3-70b", "--cluster", "dgx-h100", "--gpus",
       "2048", "--seq-len", "8192", "--global-batch", fmt::format("{:.0f}", sequences), "--json"},
      {"LC_ALL=C"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const double best = json::parse(result.out).at("best").at("prediction").at("tokens_per_s");
  EXPECT_LT(best, 1.01 * option.at("tokens_per_s").get<double>());
}

// `predict --tokens` of a plan that `size` found says the same days, or by what factor they differ.
TEST(Size, PredictSaysOfItsPlansWhatItSays) {
  for (const char* gpus : {"64", "4096"}) {
    const json option = sized({"--model", "llama-3-8b", "--tokens", "1e12", "--clusters",
                               "dgx-h100", "--gpus", gpus, "--strategy", "fsdp2"})
                            .at("options")[0];
    Words arguments{SHARDWRIGHT_BINARY, "predict",  "--model", "llama-3-8b", "--cluster",
                    "dgx-h100",         "--tokens", "1e12",    "--json"};
    for (const auto& [knob, value] : option.at("plan").items()) {
      if (value.is_null() || knob == "ckpt_stride" || (knob == "shard_group" && value == 0))
        continue;
      std::string flag = "--" + knob;
      std::replace(flag.begin(), flag.end(), '_', '-');
      arguments.push_back(std::move(flag));
      arguments.push_back(value.is_string()    ? value.get<std::string>()
                          : value.is_boolean() ? (value.get<bool>() ? "on" : "off")
                                               : value.dump());
    }
    const json run = document_of(run_program(arguments, {"LC_ALL=C"})).at("whole_run");
    const double days = option.at("days");
    const double more =
        run.at("tokens_factor_in_size").get<double>() / run.at("tokens_factor").get<double>();
    EXPECT_NEAR(run.at("days").get<double>() * more, days, 1e-6 * days) << gpus;
  }
}

// A sequence that nobody gives is as long in every answer, which says so; one that is given, and a
// plan's own, is not talked about.
TEST(SequenceLength, IsTheModelsWhereNobodySays) {
  const auto answer = [](const Words& words) {
    return run_program(joined({SHARDWRIGHT_BINARY}, words), {"LC_ALL=C"});
  };
  struct Case {
    const char* model;
    const char* task;
    int tokens;
    const char* words;
  };
  for (const Case& one : std::vector<Case>{
           {"llama-2-7b", "pretrain", 4096, "sequence length 4,096, from the model"},
           {"llama-3.1-8b", "pretrain", 8192,
            "sequence length 8,192, of the 131,072 that the model takes"},
           {"llama-3.1-8b", "lora", 2048, "sequence length 2,048, usual to fine-tune"}}) {
    const Words job{"--model", one.model, "--task", one.task, "--gpus", "8"};
    for (const char* verb : {"predict", "tune", "size"}) {
      Words words = joined({verb}, job);
      if (std::string(verb) == "size") words.insert(words.end(), {"--tokens", "1B"});
      words.insert(words.end(), {std::string(verb) == "size" ? "--clusters" : "--cluster",
                                 "dgx-h100", "--strategy", "fsdp2"});
      EXPECT_THAT(answer(words).out, HasSubstr(one.words)) << verb;
      words.emplace_back("--json");
      const json document = json::parse(answer(words).out);
      const bool tunes = std::string(verb) == "tune";
      const json& inputs =
          tunes ? document.at("best").at("prediction").at("inputs") : document.at("inputs");
      const json& plan = std::string(verb) == "size" ? inputs : inputs.at("plan");
      EXPECT_EQ(plan.at("seq_len"), one.tokens) << verb << " " << one.model;
      EXPECT_EQ((tunes ? document : inputs).at("usual_length"), one.words) << verb;
    }
  }
  const json given = json::parse(answer({"predict", "--model", "llama-3-8b", "--cluster",
                                         "dgx-h100", "--seq-len", "4k", "--json"})
                                     .out);
  EXPECT_TRUE(given.at("inputs").at("usual_length").is_null());
  const json shown = json::parse(answer({"inspect", "model", "llama-2-7b", "--json"}).out);
  EXPECT_EQ(shown.at("flops_per_token").at("seq_len"), 4096);
}

}  // namespace
}  // namespace shardwright::cli
