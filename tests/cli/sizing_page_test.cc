// SPDX-License-Identifier: Apache-2.0
#include "cli/render/html/sizing_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace shardwright::cli::html {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::Not;

Json option(const char* cluster, int gpus, double days, double usd, bool in_time) {
  return {{"cluster", cluster},
          {"gpu", "h100-80g"},
          {"gpus", gpus},
          {"plan",
           {{"strategy", "hsdp"},
            {"micro_batch", 8},
            {"grad_accum", 2},
            {"ckpt_layers", 3},
            {"recompute", "norm"}}},
          {"plan_words", "hsdp, 8 x 2, 3 layers norm"},
          {"days", days},
          {"days_interval", {0.9 * days, 1.2 * days}},
          {"cost_usd", usd},
          {"cost_usd_interval", {0.9 * usd, 1.2 * usd}},
          {"mfu", 0.59},
          {"tokens_per_s", 3221637.9},
          {"meets", {{"deadline", in_time}, {"budget", nullptr}}}};
}

/// What `size --json` prints, as far as the page reads it.
Json document() {
  const Json chosen = option("dgx-h100", 256, 54, 781000, true);
  const Json faster = option("dgx-b200", 128, 46, 1238000, true);
  const Json late = option("<b>p4d</b>", 64, 900, 2000000, false);
  Json recommended = chosen;
  recommended["recommended"] = true;
  return {{"options", {chosen, faster, late}},
          {"pareto", {faster, chosen}},
          {"best_of_each", {recommended, faster, late}},
          {"recommended", chosen},
          {"words", {"Take 256 GPUs & be glad.", "It is safe."}},
          {"assumptions", {"Nothing fails."}},
          {"inputs",
           {{"model", "llama-3-8b"},
            {"tokens", 15e12},
            {"seq_len", 2048},
            {"deadline_days", 60},
            {"budget_usd", nullptr}}}};
}

TEST(SizingPage, SaysTheAnswerFirstAndThenTheOptions) {
  const std::string page = sizing_page(document(), {{"Command", "shardwright size"}});
  EXPECT_THAT(page, HasSubstr("<h1>Take 256 GPUs &amp; be glad.</h1>"));
  EXPECT_THAT(page, HasSubstr("llama-3-8b on 15T tokens"));
  EXPECT_THAT(page, HasSubstr("54 days"));
  EXPECT_THAT(page, HasSubstr("48.6 days to 64.8 days"));
  EXPECT_THAT(page, HasSubstr("781 k USD"));
  EXPECT_THAT(page, HasSubstr("hsdp, 8 x 2, 3 layers norm"));
  EXPECT_THAT(page, HasSubstr("Nothing fails."));
  EXPECT_THAT(page, HasSubstr("shardwright size"));
  // What the document lacks has no heading.
  EXPECT_THAT(page, Not(HasSubstr("Break-even")));
  EXPECT_THAT(page, Not(HasSubstr("What training runs reached")));
}

TEST(SizingPage, ShowsTheBestOfEachAsTheDocumentHasThem) {
  Json sizing = document();
  sizing["best_of_each"][1]["estimate_only"] = true;
  const std::string page = sizing_page(sizing, {});
  const std::string best = page.substr(page.find("The best size of each cluster"));
  EXPECT_LT(best.find("<tr class=\"chosen\"><td>dgx-h100"),
            best.find("dgx-b200 (nothing measured)"));
  EXPECT_LT(best.find("dgx-b200"), best.find("&lt;b&gt;p4d&lt;/b&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("<b>p4d</b>")));
}

TEST(SizingPage, NamesNoFlagsToWhoeverSigns) {
  Json sizing = document();
  sizing["summary"] = {"Take 256 GPUs.", "It costs 6.84 USD; 2.5 more. --price x=USD sets yours."};
  sizing["words"] = sizing["summary"];
  sizing["words"].push_back("No price is known; --price tells it.");
  const std::string page = sizing_page(sizing, {});
  EXPECT_THAT(page, HasSubstr("It costs 6.84 USD; 2.5 more."));
  EXPECT_THAT(page, HasSubstr("No price is known."));
  EXPECT_THAT(page.substr(page.find("<h1>")), Not(HasSubstr("--")));
}

TEST(SizingPage, DrawsEveryPricedOptionAndTheDeadline) {
  Json sizing = document();
  const auto count = [](const std::string& page, const std::string& what) {
    int times = 0;
    for (auto at = page.find(what); at != std::string::npos; at = page.find(what, at + 1)) ++times;
    return times;
  };
  EXPECT_EQ(count(sizing_page(sizing, {}), "<circle"), 3);
  EXPECT_EQ(count(sizing_page(sizing, {}), "class=\"limit\""), 1);
  sizing["inputs"]["budget_usd"] = 1e6;
  sizing["options"][2]["cost_usd"] = nullptr;
  EXPECT_EQ(count(sizing_page(sizing, {}), "<circle"), 2);
  EXPECT_EQ(count(sizing_page(sizing, {}), "class=\"limit\""), 2);
}

TEST(SizingPage, ShowsBreakEvenPricesAndWhatWholeTrainingsReached) {
  Json sizing = document();
  sizing["break_even"] = {{{"cluster", "dgx-b200"},
                           {"gpus", 128},
                           {"break_even_usd_per_gpu_hour", 5.4321},
                           {"usd_per_gpu_hour", 8.6},
                           {"price", {{"kind", "on-demand"}, {"date", "2026-03"}}}}};
  sizing["whole_run_mfu_reached"] = {{"hopper", {{"n", 9}, {"mfu_quartiles", {0.21, 0.33, 0.4}}}}};
  const std::string page = sizing_page(sizing, {});
  EXPECT_THAT(page, HasSubstr("<td>5.43</td>"));
  EXPECT_THAT(page, HasSubstr("8.60 (on-demand, 2026-03)"));
  EXPECT_THAT(page, HasSubstr("hopper"));
  EXPECT_THAT(page, HasSubstr("33.0 %"));
}

TEST(SizingPage, TellsOfNoRecommendation) {
  Json sizing = document();
  sizing["recommended"] = nullptr;
  sizing["words"] = {"None: nothing meets the deadline."};
  const std::string page = sizing_page(sizing, {});
  EXPECT_THAT(page, HasSubstr("<h1>None: nothing meets the deadline.</h1>"));
  EXPECT_THAT(page, Not(HasSubstr("class=\"tiles\"")));
}

}  // namespace
}  // namespace shardwright::cli::html
