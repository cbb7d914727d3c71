// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <sstream>

#include "cli/flags/size_flags.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"
#include "sim/core/base/error.h"
#include "tests/cli/size_fixture.h"

namespace shardwright::cli {
namespace {

using of_size::size;
using of_size::sized;
using of_size::small_size;

void expect_size_error(const Words& flags, int exit_code, const char* part) {
  shardwright::testing::expect_error(size(flags), exit_code, part);
}

TEST(Size, PrintsTheContractsDocument) {
  const json document =
      sized(small_size({"--deadline", "30d", "--budget", "3e6", "--price", "p4d=2"}));
  EXPECT_EQ(document.at("schema"), "shardwright.sizing/1.0");
  ASSERT_GT(document.at("options").size(), 8U);
  for (const json& option : document.at("options")) {
    const double days = option.at("days");
    const double ideal = option.at("step_only").at("days");
    EXPECT_NEAR(ideal, 1e12 / option.at("tokens_per_s").get<double>() / 86400, ideal * 1e-9);
    const json& production = option.at("production");
    EXPECT_NEAR(days,
                ideal * production.at("factor").get<double>() *
                    production.at("scale_factor").get<double>() *
                    production.at("tokens_factor").get<double>(),
                days * 1e-9);
    EXPECT_GT(days, ideal);
    EXPECT_EQ(option.at("plan").at("gpus"), option.at("gpus"));
    EXPECT_EQ(option.at("plan").at("strategy"), "yafsdp");
    EXPECT_GT(option.at("mfu").get<double>(), 0);
    EXPECT_THAT(option.at("regime"), AnyOf("compute", "communication"));
    EXPECT_EQ(option.at("host").at("regime"), "device-bound");
    const double price = option.at("usd_per_gpu_hour");
    EXPECT_EQ(price, option.at("cluster") == "p4d" ? 2 : 3.99);
    EXPECT_EQ(option.at("price").at("kind"), "on-demand");
    EXPECT_LE(option.at("price").at("range")[0].get<double>(), price);
    EXPECT_LE(option.at("cost_usd_interval")[0].get<double>(), option.at("cost_usd"));
    EXPECT_GE(option.at("cost_usd_interval")[1].get<double>(), option.at("cost_usd"));
    const double usd = option.at("cost_usd");
    EXPECT_NEAR(usd, days * 24 * option.at("gpus").get<double>() * price, usd * 1e-9);
    EXPECT_EQ(option.at("meets").at("deadline"), days <= 30);
    EXPECT_EQ(option.at("meets").at("budget"), usd <= 3e6);
    EXPECT_LT(option.at("days_interval")[0].get<double>(), days);
    EXPECT_GT(option.at("days_interval")[1].get<double>(), days);
  }
  // The cheapest of those that miss the deadline in one case of ten at most.
  const json& recommended = document.at("recommended");
  EXPECT_TRUE(document.at("recommended_is_safe").get<bool>());
  double cheapest = 1e18;
  for (const json& option : document.at("options")) {
    const json& meets = option.at("meets");
    if (meets.at("safely") && meets.at("budget") && !option.at("over_critical_batch"))
      cheapest = std::min(cheapest, option.at("cost_usd").get<double>());
  }
  EXPECT_EQ(recommended.at("cost_usd"), cheapest);
  EXPECT_LE(recommended.at("probability").at("deadline").get<double>(), 0.1);
  EXPECT_GT(recommended.at("probability").at("deadline").get<double>(), 0);
  EXPECT_LE(document.at("in_the_middle").at("gpus"), recommended.at("gpus"));
  // Of its cluster nothing smaller meets the goal, or does so safely.
  const json &smallest = document.at("smallest"), &safe = document.at("smallest_safe");
  EXPECT_TRUE(smallest.at("meets").at("deadline").get<bool>());
  EXPECT_TRUE(safe.at("meets").at("safely").get<bool>());
  for (const json& option : document.at("options")) {
    const json& meets = option.at("meets");
    if (option.at("cluster") != recommended.at("cluster") || option.at("over_critical_batch") ||
        !meets.at("deadline") || !meets.at("budget"))
      continue;
    EXPECT_GE(option.at("gpus"), smallest.at("gpus"));
    EXPECT_TRUE(!meets.at("safely") || option.at("gpus") >= safe.at("gpus"));
  }
  for (const json& even : document.at("break_even")) {
    EXPECT_NE(even.at("cluster"), recommended.at("cluster"));
    EXPECT_GT(even.at("break_even_usd_per_gpu_hour").get<double>(), 0);
  }
  double days = 0, usd = 1e18;
  for (const json& option : document.at("pareto")) {  // fastest first, each cheaper than the last
    EXPECT_GT(option.at("days").get<double>(), days);
    EXPECT_LT(option.at("cost_usd").get<double>(), usd);
    days = option.at("days");
    usd = option.at("cost_usd");
  }
  EXPECT_TRUE(document.at("savings").is_null());
  EXPECT_EQ(document.at("interrupted"), false);
  EXPECT_FALSE(document.at("words").empty());
}

TEST(Size, SaysInWordsWhatToTakeAndWhatItRestsOn) {
  const ProgramResult result = size(small_size({"--deadline", "30d", "--budget", "3e6"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");  // progress is for terminals only
  expect_says(result.out,
              {"Recommended", "Take ", "of dgx-h100", " %)", "The budget holds up to",
               "It misses the deadline", "Expect an interruption every", "critical batch",
               "How dgx-h100 scales", "The steps are those of the framework torch-compile",
               "The steps alone would take", "published trainings", "All prices are on-demand ones",
               "--price dgx-h100=USD", "geometric mean"});
  std::size_t begin = 0;
  while (begin < result.out.size()) {
    const std::size_t end = result.out.find('\n', begin);
    EXPECT_LE(end - begin, 100U) << result.out.substr(begin, end - begin);
    begin = end + 1;
  }
}

TEST(Size, SequencesAreAsLongAsTheModelIsTrainedOn) {
  const Words flags{"--model",  "llama-3-8b", "--tokens", "1e11",       "--clusters",
                    "dgx-h100", "--gpus",     "8",        "--strategy", "yafsdp"};
  EXPECT_EQ(sized(flags).at("inputs").at("seq_len"), 8192);
  Words older = flags;
  older[1] = "llama-2-7b";
  EXPECT_EQ(sized(older).at("inputs").at("seq_len"), 4096);
}

TEST(Size, TheNetworkOfANodeIsGivenAsItIsSold) {
  const auto days = [](const Words& more) {
    Words flags = joined({"--model", "llama-3-70b", "--tokens", "1e12", "--clusters", "dgx-h100",
                          "--gpus", "256", "--strategy", "fsdp2", "--seq-len", "4096"},
                         more);
    return sized(flags).at("options")[0].at("days").get<double>();
  };
  EXPECT_NEAR(days({"--node-network", "3200Gb/s"}), days({}), 1e-9);
  EXPECT_NEAR(days({"--node-network", "3.2Tb/s"}), days({"--node-network", "400GB/s"}), 1e-9);
  EXPECT_GT(days({"--node-network", "400Gb/s"}), 1.05 * days({}));
  expect_size_error({"--model", "llama-3-8b", "--tokens", "1e12", "--node-network", "400"}, 3,
                    "expected a rate of one node such as 400Gb/s");
}

TEST(Size, EnergyStandsBesideDollars) {
  Words flags{"--model", "llama-3-8b", "--tokens", "1e12",  "--clusters", "dgx-h100",  "--gpus",
              "64",      "--strategy", "yafsdp",   "--pue", "1.1",        "--grid-kg", "0.05"};
  const json option = sized(flags).at("options")[0];
  // 700 W, 1.4 times that for the node, 1.1 for the building.
  const double kwh = option.at("gpu_hours").get<double>() * 0.7 * 1.4 * 1.1;
  EXPECT_NEAR(option.at("energy").at("kwh").get<double>(), kwh, 1e-6 * kwh);
  EXPECT_NEAR(option.at("energy").at("kg_co2").get<double>(), 0.05 * kwh, 1e-6 * kwh);
  expect_size_error({"--model", "llama-3-8b", "--tokens", "1e12", "--pue", "0.5"}, 3,
                    "--pue is 0.5");
}

// A cap of the boards costs days and saves electricity, of the whole run and of a plan alike.
TEST(Size, ACapOfPowerCostsDaysAndSavesEnergy) {
  const auto option = [](const Words& more) {
    Words flags = joined({"--model", "llama-3-8b", "--tokens", "1e12", "--clusters", "dgx-h100",
                          "--gpus", "64", "--strategy", "fsdp2", "--seq-len", "8192"},
                         more);
    return sized(flags).at("options")[0];
  };
  const json full = option({}), capped = option({"--power-limit-watts", "500"});
  EXPECT_GT(capped.at("days").get<double>(), 1.08 * full.at("days").get<double>());
  EXPECT_LT(capped.at("days").get<double>(), 1.22 * full.at("days").get<double>());
  EXPECT_LT(capped.at("energy").at("kwh").get<double>(),
            0.97 * full.at("energy").at("kwh").get<double>());
  EXPECT_EQ(capped.at("energy").at("watts"), 500);
  EXPECT_EQ(option({"--power-limit-watts", "5000"}).at("days"), full.at("days"));
}

TEST(Size, SaysWhenItRecommendsAPartOfANode) {
  const Words flags{"--model", "gpt2", "--tokens",   "1e9",    "--clusters", "dgx-h100",
                    "--gpus",  "7",    "--strategy", "yafsdp", "--seq-len",  "1024"};
  const json document = sized(flags);
  const std::string first = document.at("words").at(0);
  EXPECT_THAT(first, HasSubstr("a part of one node: 7 of its 8 GPUs"));
  EXPECT_THAT(first, HasSubstr("a node that is let whole costs that of 8 GPUs"));
}

TEST(Size, WhatCannotBeMetIsExitFourWithTheCheapestAndTheFastest) {
  const Words flags = small_size({"--deadline", "1h", "--budget", "1000"});
  const ProgramResult result = size(flags);
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err,
              StartsWith("error: nothing meets the deadline of 60 minutes and the budget"));
  EXPECT_THAT(result.err, HasSubstr("the cheapest is"));
  EXPECT_THAT(result.err, HasSubstr("the fastest is"));
  EXPECT_THAT(result.out, HasSubstr("The goal is not met"));
  const json document = sized(flags, 4);
  EXPECT_TRUE(document.at("recommended").is_null());
  EXPECT_LT(document.at("fastest").at("days").get<double>(),
            document.at("cheapest").at("days").get<double>());
}

TEST(Size, ASmallRunIsToldInSmallUnits) {
  const ProgramResult result =
      size({"--model", "gpt2", "--tokens", "1e10", "--seq-len", "1024", "--clusters", "dgx-h100",
            "--max-gpus", "64", "--strategy", "single,ddp,yafsdp", "--deadline", "2d"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(" hours"));
  EXPECT_THAT(result.out, HasSubstr(" USD "));
  EXPECT_THAT(result.out, Not(HasSubstr("M USD")));
}

TEST(Size, AModelThatFitsNowhereIsExitFourAndSaysHowFar) {
  expect_size_error(
      {"--model", "llama-2-70b", "--tokens", "2e12", "--clusters", "dgx-h100", "--max-gpus", "8"},
      4, "on 8 GPUs of dgx-h100: weights and moments alone take 96.4 GiB");
}

TEST(Size, FailuresAndCheckpointsAreTheUsers) {
  Words flags{"--model",     "llama-3-8b", "--tokens",       "1e12", "--cluster",    "dgx-h100",
              "--gpus",      "256",        "--seq-len",      "4096", "--strategy",   "yafsdp",
              "--recompute", "full",       "--micro-batch",  "1",    "--mtbf-hours", "2560",
              "--restart-s", "900",        "--checkpoint-s", "50"};
  const json goodput = sized(flags).at("options")[0].at("goodput");
  // One interruption in 10 hours: M = 36,000 s, d = 50, R = 900. sqrt(2 d M) = 1897.37, d/2M =
  // 0.000694: t = 1897.37 (1 + 0.026352/3 + 0.000694/9) - 50 = 1864.18; t/M = 0.0517828, and
  // 0.0517828 / (e^0.025 (e^0.0531717 - 1)) = 0.924806.
  EXPECT_NEAR(goodput.at("mtbf_s").get<double>(), 36'000, 1e-6);
  EXPECT_NEAR(goodput.at("checkpoint_interval_s").get<double>(), 1864.18, 0.02);
  EXPECT_NEAR(goodput.at("useful_share").get<double>(), 0.924806, 2e-5);
}

TEST(Size, ComparesStrategiesAtEqualThroughput) {
  const Words flags{
      "--model",           "llama-3-70b", "--tokens",     "15e12",     "--cluster",
      "a100-80g-4xhdr200", "--gpus",      "256",          "--seq-len", "2048",
      "--micro-batch",     "1",           "--grad-accum", "1",         "--stack",
      "hf-eager",          "--compare",   "yafsdp,fsdp1", "--price",   "a100-80g=4.10"};
  const json savings = sized(flags).at("savings");
  const double fast = savings.at("faster").at("tokens_per_gpu_s");
  const double slow = savings.at("slower").at("tokens_per_gpu_s");
  EXPECT_EQ(savings.at("faster").at("strategy"), "yafsdp");
  // The published times of the two are 7.17 and 9.76 s at 20 checkpointed layers.
  EXPECT_NEAR(fast, 2048 / 7.17, 0.03 * fast);
  EXPECT_NEAR(slow, 2048 / 9.76, 0.12 * slow);
  const double saved = 256 - 256 * slow / fast;
  EXPECT_NEAR(savings.at("gpus_saved").get<double>(), saved, 1e-9);
  EXPECT_NEAR(savings.at("usd_per_month").get<double>(), saved * 4.10 * 730, 1e-3);
  EXPECT_EQ(savings.at("whole_node_gpus_needed").get<int>() % 8, 0);
  const ProgramResult text = size(flags);
  EXPECT_THAT(text.out, HasSubstr("yafsdp against fsdp1 on a100-80g-4xhdr200"));
  EXPECT_THAT(text.out, HasSubstr("x 4.10 USD x 730 h ="));
}

TEST(Size, TheSizeBetweenPowersOfTwoThatTheDeadlineNeeds) {
  const json document = sized(small_size({"--deadline", "20d"}));
  bool between = false;
  for (const json& option : document.at("options")) {
    const auto gpus = option.at("gpus").get<std::int64_t>();
    EXPECT_TRUE(gpus < 8 || gpus % 8 == 0) << gpus;
    between |= (gpus & (gpus - 1)) != 0;
  }
  EXPECT_TRUE(between);
}

// An old price is marked, with its age counted to the day that the environment names.
TEST(Size, OldPricesAreMarked) {
  const auto text_on = [](const char* epoch) {
    Words arguments{SHARDWRIGHT_BINARY, "size"};
    for (const std::string& flag : small_size()) arguments.push_back(flag);
    return run_program(arguments, {"LC_ALL=C", std::string("SOURCE_DATE_EPOCH=") + epoch}).out;
  };
  EXPECT_THAT(text_on("1795348800"), Not(HasSubstr("Warning: prices older")));  // 2026-11-22
  EXPECT_THAT(text_on("1811000000"), HasSubstr("Warning: prices older than 90 days: dgx-h100"));
}

// All clusters take many times what the first one takes. How long that is depends on the machine,
// so the signal comes later and later until it no longer comes too early, minutes later under a
// sanitizer.
TEST(Size, AnInterruptedSearchAnswersWithTheBestSoFar) {
  ProgramResult result;
  for (int wait_ms = 250; wait_ms < 500000; wait_ms *= 2) {
    result = run_program({"/usr/bin/timeout", "--preserve-status", "--signal=INT",
                          fmt::format("{}", 1e-3 * wait_ms), SHARDWRIGHT_BINARY, "size", "--model",
                          "llama-3-8b", "--tokens", "1e12", "--deadline", "60d", "--json"});
    if (result.exit_code == 0) break;
  }
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const json document = json::parse(result.out);
  EXPECT_EQ(document.at("interrupted"), true);
  EXPECT_TRUE(document.at("recommended").at("meets").at("deadline").get<bool>());
  EXPECT_THAT(document.at("words").dump(), HasSubstr("Interrupted"));
}

TEST(Size, BadInputIsOneSentence) {
  const Words job{"--model", "llama-3-8b", "--tokens", "1e12"};
  const auto with = [&](const Words& more) { return joined(job, more); };
  expect_size_error(with({"--clusters", "dgx-h10"}), 3, "the nearest are dgx-h100");
  expect_size_error(with({"--clusters", "p5,,p4d"}), 3, "--clusters is 'p5,,p4d'");
  expect_size_error(with({"--clusters", "p5,p5"}), 3, "names p5 twice");
  expect_size_error(with({"--cluster", "p5", "--clusters", "all"}), 2, "--cluster and --clusters");
  expect_size_error(with({"--deadline", "30x"}), 2, "--deadline is '30x'");
  expect_size_error(with({"--deadline", "0d"}), 3, "--deadline is 0d");
  expect_size_error(with({"--budget", "-3"}), 3, "--budget is -3");
  expect_size_error(with({"--price", "h100=2"}), 3, "no cluster or GPU of that name");
  expect_size_error(with({"--price", "h100-80g=0"}), 3, "must cost more than 0");
  expect_size_error(with({"--price", "h100-80g"}), 2, "expected NAME=USD");
  expect_size_error(with({"--price-kind", "cheap"}), 3, "expected on-demand, reserved or spot");
  expect_size_error(with({"--compare", "yafsdp"}), 3, "--compare is 'yafsdp'");
  expect_size_error(with({"--compare", "yafsdp,fsdp9"}), 3, "did you mean");
  expect_size_error(with({"--mtbf-hours", "0"}), 3, "--mtbf-hours is 0");
  expect_size_error(with({"--max-gpus", "0"}), 3, "--max-gpus is 0");
  expect_size_error(with({"--gpus", "8", "--max-gpus", "4"}), 3,
                    "--gpus is 8, but --max-gpus is 4");
  expect_size_error(with({"--plan", "x.json"}), 2, "size takes no --plan");
  expect_size_error(with({"--clusters", "dgx-h100", "--gpus", "9"}), 3, "a multiple of the 8 GPUs");
  expect_size_error(with({"--clusters", "dgx-h100", "--gpus", "64", "--global-batch", "100"}), 3,
                    "64 or 128 would be");
  expect_size_error({"--model", "llama-3-8b", "--tokens", "0"}, 3, "--tokens is 0");
  expect_size_error({"--model", "llama-3-8b"}, 2, "--tokens is missing");
  expect_size_error({"--tokens", "1e12"}, 2, "--model is missing");
}

TEST(Offers, APriceOfTheClusterCountsBeforeThatOfItsGpu) {
  tuner::Prices prices;
  add_price(prices, "h100-80g=2.5");
  add_price(prices, "p5=4");
  EXPECT_THROW(add_price(prices, "p5=5"), Error);
  const std::vector<tuner::Offer> offers =
      tuner::load_offers({"dgx-h100", "p5", "p4d"}, std::nullopt, {}, prices);
  EXPECT_EQ(offers[0].usd_per_gpu_hour, 2.5);
  EXPECT_EQ(offers[0].price.range[1], 2.5);
  EXPECT_EQ(offers[1].usd_per_gpu_hour, 4);
  EXPECT_EQ(offers[2].usd_per_gpu_hour, 2.745);
  EXPECT_EQ(tuner::price_source(offers[1]), "--price");
  EXPECT_THAT(tuner::price_source(offers[2]), HasSubstr("2026-11-09"));
  EXPECT_EQ(offers[2].profile.stack.id, "torch-compile");
  const std::vector<tuner::Offer> spot =
      tuner::load_offers({"dgx-h100", "host"}, std::nullopt, {}, {}, profiles::PriceKind::kSpot);
  EXPECT_LT(spot[0].usd_per_gpu_hour, 2.5);
  EXPECT_EQ(spot[1].profile.stack.id, "native");
}

// gb300: no rate of its own, but published steps of megatron-core; dgx-b300: rates, but no step.
TEST(Offers, OnlyAGpuWithoutRatesAndRunsIsAnEstimate) {
  const auto estimates = [](const std::vector<std::string>& names,
                            const std::optional<std::string>& stack) {
    std::vector<std::string> only;
    for (const tuner::Offer& offer : tuner::load_offers(names, stack, {}, {})) {
      if (tuner::estimate_only(offer)) only.push_back(offer.name);
    }
    return only;
  };
  const std::vector<std::string> names{"dgx-h100", "dgx-b300", "gb300-nvl72", "mi325x-8x400"};
  EXPECT_THAT(estimates(names, std::nullopt), ElementsAre("mi325x-8x400"));
  EXPECT_THAT(estimates(names, "torch-compile"), ElementsAre("gb300-nvl72", "mi325x-8x400"));
}

TEST(Quantity, NumbersOfARun) {
  EXPECT_EQ(plain(2e12), "2e12");
  EXPECT_EQ(plain(1.5e13), "1.5e13");
  EXPECT_EQ(plain(4096), "4096");
  EXPECT_EQ(dollars(1'234'567), "1.23 M USD");
  EXPECT_EQ(dollars(999'600), "1 M USD");
  EXPECT_EQ(dollars(45'600), "45.6 k USD");
  EXPECT_EQ(dollars(12), "12 USD");
  EXPECT_EQ(thousands(1234567), "1,234,567");
}

TEST(Scatter, PutsPointsWhereTheyBelong) {
  const Terminal ascii{.columns = 40};
  const Axis days{"days", {1, 10, 100}}, money{"M USD", {1, 10, 100}};
  const std::string drawn =
      scatter({{1, 100, 'a'}, {10, 10, 'b'}, {100, 1, 'c'}, {0, 5, 'x'}}, days, money, 3, ascii);
  EXPECT_EQ(drawn,
            "   M USD\n"
            "    100 |a\n"
            "     10 |               b\n"
            "      1 |                             c\n"
            "        +------------------------------\n"
            "         1              10  days\n");
  EXPECT_EQ(scatter({{1, 1, 'a'}}, days, money, 3, ascii), "");
}

}  // namespace
}  // namespace shardwright::cli
