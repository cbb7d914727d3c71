// SPDX-License-Identifier: Apache-2.0
// The sweep and what is made of it: arithmetic by hand, choices on options made up for the purpose,
// and the promises of a search (same answer on any number of threads, an answer when stopped).
#include "tuner/size/sizing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "profiles/data_file.h"
#include "profiles/operations.h"
#include "sim/core/base/error.h"
#include "sim/core/hf/config.h"
#include "tests/support/not_empty.h"
#include "tests/tuner/models.h"
#include "tuner/runs/run_cost.h"
#include "tuner/search/search.h"
#include "tuner/size/sizing_choice.h"

namespace shardwright::tuner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Offer offer_of(const char* cluster, double usd = 2) {
  return {cluster, profiles::load_profile(cluster, "native"), {}, usd, {usd, {usd, usd}, "", {}}};
}

SizingJob job_of(const Model& model, double tokens) {
  SizingJob job;
  job.fixed.seq_len = 4096;
  job.fixed.attention = AttentionKind::kFlash;
  job.fixed.strategies = {Strategy::kYafsdp, Strategy::kHsdp};
  job.fixed.recompute = Recomputation{};
  job.run = usual_conditions(model, tokens, job.fixed.seq_len);
  return job;
}

TEST(Sizing, CountsArePowersOfTwoWithinANodeAndOfNodes) {
  Cluster cluster;
  cluster.gpus_per_node = 8;
  cluster.nics_per_node = 8;
  EXPECT_THAT(gpu_counts(cluster, 64), ElementsAre(1, 2, 4, 8, 16, 32, 64));
  EXPECT_THAT(gpu_counts(cluster, 4), ElementsAre(1, 2, 4));
  cluster.gpus_per_node = 72;
  EXPECT_THAT(gpu_counts(cluster, 300), ElementsAre(1, 2, 4, 8, 16, 32, 64, 128, 256));
  cluster.nics_per_node = 0;
  EXPECT_THAT(gpu_counts(cluster, 300), ElementsAre(1, 2, 4, 8, 16, 32, 64, 72));
}

TEST(Sizing, DaysAndDollarsByHand) {
  const Model model = model_of("llama-3-8b");
  SizingJob job = job_of(model, 1e12);
  job.gpus = 64;
  job.run.checkpoint_s = 30;
  const Sweep result = sweep(model, {offer_of("dgx-h100", 2.5)}, job);
  ASSERT_EQ(result.options.size(), 1U);
  const Sized& option = result.options.front();
  EXPECT_EQ(option.gpus(), 64);
  // The usual batch is the power of two of sequences that costs at most 20 % more tokens.
  const double sequences = option.tokens_per_step / 4096;
  EXPECT_EQ(sequences, std::exp2(std::floor(std::log2(0.2 * job.run.critical_tokens / 4096))));
  EXPECT_EQ(option.prediction.plan.micro_batch * option.prediction.plan.grad_accum * 64, sequences);

  const double step_s = option.prediction.time.iteration_s;
  const double steps = 1e12 / option.tokens_per_step;
  const profiles::Production& production = job.run.production;
  const auto share_on = [&](double gpus) {
    const double mtbf_s = job.run.mtbf_gpu_hours * 3600 / gpus;
    return goodput_at(daly_interval_s(30, mtbf_s), 30, job.run.restart_s, mtbf_s);
  };
  const double ideal = steps * step_s / 86400;
  const double small = profiles::small_in_large(8.03e9, ideal * 24 * 64);
  const double days = ideal * std::exp(production.log_factor + production.small_model * small) *
                      share_on(production.usual_gpus) / share_on(64);
  EXPECT_NEAR(option.cost.ideal_days, ideal, ideal * 1e-9);
  EXPECT_NEAR(option.cost.days, days, days * 1e-4);
  EXPECT_NEAR(*option.cost.usd, option.cost.days * 24 * 64 * 2.5, 1e-3);
  EXPECT_NEAR(option.cost.gpu_hours, option.cost.days * 24 * 64, 1e-6);
  EXPECT_GT(option.cost.days_interval[1] / days, option.prediction.time.interval_s[1] / step_s);
  EXPECT_FALSE(option.over_critical);
}

TEST(Sizing, TheBatchIsRespectedOrNamedAsTheReason) {
  const Model model = model_of("llama-3-8b");
  SizingJob job = job_of(model, 1e12);
  job.fixed.global_batch = 96;
  job.max_gpus = 256;
  const Sweep result = sweep(model, {offer_of("dgx-h100")}, job);
  for (const Sized& option : not_empty(result.options))
    EXPECT_EQ(option.tokens_per_step, 96.0 * 4096);
  std::vector<std::int64_t> left_out;
  for (const LeftOut& left : not_empty(result.left_out)) {
    if (left.lack == Lack::kBatch) left_out.push_back(left.gpus);
  }
  EXPECT_THAT(left_out, ElementsAre(64, 128, 256));  // 96 is no multiple of 64
  EXPECT_THAT(result.left_out.back().reason, HasSubstr("too small for 256 GPUs"));

  job.fixed.global_batch.reset();
  job.max_gpus = 16384;
  const Sweep all = sweep(model, {offer_of("dgx-h100")}, job);
  EXPECT_TRUE(all.options.back().over_critical);
  EXPECT_EQ(all.options.back().gpus(), 16384);
}

TEST(Sizing, WhatDoesNotFitSaysHowFarItIs) {
  const Model model = model_of("llama-2-70b");
  SizingJob job = job_of(model, 2e11);
  job.max_gpus = 32;
  const Sweep result = sweep(model, {offer_of("dgx-a100-80g")}, job);
  ASSERT_FALSE(result.left_out.empty());
  EXPECT_THAT(result.left_out.front().reason,
              HasSubstr("weights and moments alone take 770.9 GiB"));
  for (const LeftOut& left : result.left_out) EXPECT_EQ(left.lack, Lack::kMemory);
  const Sweep contradiction = [&] {
    SizingJob odd = job;
    odd.fixed.micro_batch = 3;
    odd.fixed.global_batch = 64;
    odd.gpus = 64;
    return sweep(model, {offer_of("dgx-h100")}, odd);
  }();
  ASSERT_EQ(contradiction.left_out.size(), 1U);
  EXPECT_THAT(contradiction.left_out.front().reason, HasSubstr("--micro-batch is 3"));
}

TEST(Sizing, TheAnswerDoesNotDependOnThreadsOrOrder) {
  const Model model = model_of("llama-3-8b");
  SizingJob job = job_of(model, 1e10);
  job.max_gpus = 32;
  const std::vector<Offer> offers{offer_of("dgx-h100"), offer_of("p4d")};
  SweepOptions options;
  options.threads = 1;
  const Sweep one = sweep(model, offers, job, options);
  options.threads = 3;
  options.near_days = 30;
  const Sweep three = sweep(model, offers, job, options);
  ASSERT_EQ(one.options.size(), three.options.size());
  for (std::size_t i = 0; i < one.options.size(); ++i) {
    EXPECT_EQ(one.options[i].prediction.plan, three.options[i].prediction.plan);
    EXPECT_EQ(one.options[i].cost.days, three.options[i].cost.days);
  }
  EXPECT_EQ(one.considered, three.considered);
}

TEST(Sizing, SizesThatTakeDecadesAreLeftOutButForTheLargest) {
  const Model model = model_of("llama-3-8b");
  SizingJob job = job_of(model, 15e12);
  job.max_gpus = 16;
  const Sweep result = sweep(model, {offer_of("dgx-h100")}, job);
  // 15e12 tokens take 8 H100 about 7 years and 4 of them 14.
  ASSERT_EQ(result.options.size(), 2U);
  EXPECT_EQ(result.options.front().gpus(), 8);
  EXPECT_EQ(result.left_out.back().lack, Lack::kTime);
  EXPECT_THAT(result.left_out.back().reason, HasSubstr("years"));
}

TEST(Sizing, ARunThatNeverEndsIsLeftOut) {
  const Model model = model_of("llama-3-8b");
  SizingJob job = job_of(model, 1e12);
  job.gpus = 64;
  job.run.checkpoint_s = 1e9;
  const Sweep result = sweep(model, {offer_of("dgx-h100")}, job);
  EXPECT_TRUE(result.options.empty());
  ASSERT_EQ(result.left_out.size(), 1U);
  EXPECT_EQ(result.left_out.front().lack, Lack::kTime);
  EXPECT_THAT(result.left_out.front().reason,
              HasSubstr("an interruption every 500 hours, with 1e+09 s for a checkpoint"));
}

TEST(Sizing, ClustersThatDifferInPriceOnlyShareTheSearch) {
  const Model model = model_of("llama-3-8b");
  SizingJob job = job_of(model, 1e12);
  job.gpus = 64;
  const Sweep one = sweep(model, {offer_of("dgx-h100", 2)}, job);
  const Sweep both = sweep(model, {offer_of("dgx-h100", 2), offer_of("dgx-h100", 3)}, job);
  ASSERT_EQ(both.options.size(), 2U);
  EXPECT_EQ(both.considered, one.considered);
  EXPECT_EQ(both.options[1].offer, 1U);
  EXPECT_EQ(both.options[1].cost.days, both.options[0].cost.days);
  EXPECT_NEAR(*both.options[1].cost.usd, 1.5 * *both.options[0].cost.usd, 1e-6);
}

TEST(Sizing, ASweepStoppedAtOnceStillAnswers) {
  const Model model = model_of("llama-3-8b");
  const SizingJob job = job_of(model, 1e12);
  const std::atomic<bool> stop{true};
  SweepOptions options;
  options.stop = &stop;
  options.near_days = 30;
  const Sweep result = sweep(model, {offer_of("dgx-h100"), offer_of("p5")}, job, options);
  EXPECT_TRUE(result.stopped);
  ASSERT_FALSE(result.options.empty());
  EXPECT_TRUE(result.options.front().prediction.memory.fits);
  EXPECT_TRUE(choose(result.options, {}).fastest.has_value());
}

/// An option with nothing but what choices look at.
Sized option(std::size_t offer, std::int64_t gpus, double days, std::optional<double> usd) {
  Sized result;
  result.offer = offer;
  result.prediction.plan.gpus = gpus;
  result.cost.days = days;
  result.cost.days_interval = {days / 1.5, days * 1.5};
  result.cost.gpu_hours = days * 24 * static_cast<double>(gpus);
  result.cost.usd = usd;
  return result;
}

TEST(SizingChoice, TakesTheCheapestInTimeAndKeepsTheFront) {
  const std::vector<Sized> options{option(0, 64, 60, 1.0e6),  option(0, 128, 29, 1.2e6),
                                   option(0, 256, 15, 1.5e6), option(1, 64, 28, 1.1e6),
                                   option(1, 128, 16, 2.5e6), option(2, 512, 5, std::nullopt)};
  const Choice choice = choose(options, {.deadline_days = 30, .budget_usd = 3e6});
  // 28 days may be 42: the cheapest that meets the deadline at its slow end takes 15.
  EXPECT_EQ(choice.recommended, 2U);
  EXPECT_TRUE(choice.safe);
  EXPECT_EQ(choice.in_the_middle, 3U);
  EXPECT_EQ(choose(options, {.deadline_days = 6}).recommended, 5U);
  EXPECT_FALSE(choose(options, {.deadline_days = 6}).safe);  // 5 days may be 7.5
  EXPECT_THAT(choice.pareto, ElementsAre(2, 3, 0));  // what has no price is in no front of dollars
  EXPECT_EQ(choice.cheapest, 0U);
  EXPECT_EQ(choice.fastest, 5U);
  EXPECT_EQ(choose(options, {.budget_usd = 1.15e6}).recommended, 3U);
  EXPECT_EQ(choose(options, {.deadline_days = 10}).recommended, 5U);
  EXPECT_THAT(best_of_each(options, {.deadline_days = 30}), ElementsAre(2, 4, 5));
  // 15 days for 1.5 M against 28 for 1.1 M: the least product of both.
  EXPECT_EQ(choose(options, {}).recommended, 2U);
}

TEST(SizingChoice, DaysAndDollarsOfTheWholeRunDecideWhateverTheSoftware) {
  std::vector<Sized> options{option(0, 256, 15, 2e6), option(0, 512, 9, 1.8e6)};
  options[1].prediction.plan.parallel.tp = 8;
  options[1].prediction.plan.stack = "megatron-core";
  EXPECT_EQ(choose(options, {.deadline_days = 30}).recommended, 1U);
  EXPECT_EQ(choose(options, {.budget_usd = 2e6}).recommended, 1U);
  EXPECT_EQ(choose(options, {}).recommended, 1U);
}

TEST(SizingChoice, SafeMeansMissingTheDeadlineInOneCaseOfTenAtMost) {
  // A quarter of the logarithm is log(1.5) / 1.645: 30 / 1.5^(1.2816 / 1.645) = 21.87 days.
  const Goal goal{.deadline_days = 30};
  EXPECT_TRUE(meets_safely(option(0, 64, 21.8, 1e6), goal));
  EXPECT_FALSE(meets_safely(option(0, 64, 21.9, 1e6), goal));
  EXPECT_NEAR(*misses_of(option(0, 64, 21.87, 1e6), goal).deadline, 0.1, 0.001);
  EXPECT_NEAR(*misses_of(option(0, 64, 30, 1e6), goal).deadline, 0.5, 1e-9);
  EXPECT_FALSE(misses_of(option(0, 64, 30, 1e6), goal).budget.has_value());
  EXPECT_FALSE(misses_of(option(0, 64, 30, std::nullopt), {.budget_usd = 1e6}).budget.has_value());
}

// Nobody signs for a budget that every second run exceeds.
TEST(SizingChoice, ABudgetIsKeptInNineCasesOfTenWhereThatCanBe) {
  const auto priced = [](std::int64_t gpus, double days, double usd) {
    Sized result = option(0, gpus, days, usd);
    result.cost.usd_interval = {usd / 1.5, usd * 1.5};
    return result;
  };
  const std::vector<Sized> options{priced(64, 60, 0.9e6), priced(128, 31, 1.0e6),
                                   priced(256, 16, 1.3e6)};
  // 1.3 M are exceeded in one case of ten where 1.3 / 1.5^0.7791 = 0.948 M are the middle.
  const Choice choice = choose(options, {.budget_usd = 1.3e6});
  EXPECT_EQ(choice.recommended, 0U);
  EXPECT_EQ(choice.in_the_middle, 2U);
  EXPECT_TRUE(choice.safe);
  EXPECT_EQ(choose(options, {.budget_usd = 1.4e6}).recommended, 1U);
  const Choice tight = choose(options, {.budget_usd = 1.05e6});
  EXPECT_EQ(tight.recommended, 1U);
  EXPECT_FALSE(tight.safe);
  // Where both cannot be safe, the deadline is.
  const Choice both = choose(options, {.deadline_days = 30, .budget_usd = 1.4e6});
  EXPECT_EQ(both.recommended, 2U);
  EXPECT_FALSE(both.safe);
}

TEST(SizingChoice, WhenNothingMeetsTheGoalTheEndsAreNamed) {
  const std::vector<Sized> options{option(0, 64, 60, 1.0e6), option(0, 128, 31, 1.2e6)};
  const Choice choice = choose(options, {.deadline_days = 30, .budget_usd = 1.1e6});
  EXPECT_FALSE(choice.recommended.has_value());
  EXPECT_EQ(choice.cheapest, 0U);
  EXPECT_EQ(choice.fastest, 1U);
  EXPECT_FALSE(choice.cheapest_in_time.has_value());
  EXPECT_EQ(choice.fastest_in_budget, 0U);
}

TEST(SizingChoice, ABatchBeyondTheCriticalOneIsNotTheSameRun) {
  std::vector<Sized> options{option(0, 64, 40, 1.0e6), option(0, 4096, 1, 1.1e6)};
  options[1].over_critical = true;
  EXPECT_FALSE(choose(options, {.deadline_days = 30}).recommended.has_value());
  EXPECT_EQ(choose(options, {.deadline_days = 30}).beyond_critical, 1U);
  EXPECT_FALSE(choose(options, {.deadline_days = 50}).beyond_critical.has_value());
  options.erase(options.begin());
  EXPECT_TRUE(choose(options, {.deadline_days = 30}).recommended.has_value());
}

// Days that fall as 1 / GPUs: the search ends at the smallest whole nodes that meet the deadline,
// in the middle and safely.
TEST(SizingChoice, SearchesWholeNodesUntilNothingLiesBetween) {
  const std::vector<Offer> offers{offer_of("dgx-h100")};
  const auto days_on = [](std::int64_t gpus) { return 3901.0 / static_cast<double>(gpus); };
  std::vector<Sized> options;
  for (const std::int64_t gpus : {64, 128, 256, 512})
    options.push_back(option(0, gpus, days_on(gpus), 1e6 + 1e3 * static_cast<double>(gpus)));
  const Goal goal{.deadline_days = 30};
  int rounds = 0;
  while (true) {
    const auto sizes = sizes_to_try(options, offers, goal);
    if (sizes.empty()) break;
    ASSERT_LT(++rounds, 12);
    for (const auto& [offer, gpus] : sizes) {
      EXPECT_EQ(gpus % 8, 0);
      options.push_back(option(0, gpus, days_on(gpus), 1e6 + 1e3 * static_cast<double>(gpus)));
    }
  }
  const Choice choice = choose(options, goal);
  ASSERT_TRUE(choice.safe);
  EXPECT_EQ(options[*choice.in_the_middle].gpus(), 136);  // 130.03 would do
  EXPECT_EQ(options[*choice.recommended].gpus(), 184);    // 178.4 would do: 21.87 days
  EXPECT_EQ(options[*choice.smallest].gpus(), 136);
  EXPECT_EQ(options[*choice.smallest_safe].gpus(), 184);
  EXPECT_TRUE(sizes_to_try(options, offers, {}).empty());
  // With a budget alone the largest that it pays: 256 GPUs are 1.256 M.
  const Goal budget{.budget_usd = 1.3e6};
  for (int i = 0; i < 12; ++i) {
    for (const auto& [offer, gpus] : sizes_to_try(options, offers, budget))
      options.push_back(option(0, gpus, days_on(gpus), 1e6 + 1e3 * static_cast<double>(gpus)));
  }
  EXPECT_EQ(options[*choose(options, budget).recommended].gpus(), 296);
}

TEST(SizingChoice, BreakEvenIsThePriceAtWhichTheBillIsTheWinners) {
  // The winner's bill is 1.5 M; the other takes 16 days on 128 GPUs.
  const std::vector<Sized> options{option(0, 256, 15, 1.5e6), option(1, 64, 28, 1.6e6),
                                   option(1, 128, 16, 2.5e6), option(2, 8, 90, 1e5)};
  const Goal goal{.deadline_days = 30};
  const std::vector<BreakEven> even = break_even(options, choose(options, goal), goal);
  ASSERT_EQ(even.size(), 1U);  // the third cannot meet the deadline at any price
  EXPECT_EQ(even[0].offer, 1U);
  EXPECT_EQ(even[0].option, 2U);  // 28 days may be 42
  EXPECT_NEAR(even[0].usd_per_gpu_hour, 1.5e6 / (16 * 24 * 128), 1e-9);
}

// With a budget alone the fastest wins, without a goal the least product of days and dollars: there
// a bill that is the winner's flips nothing.
TEST(SizingChoice, BreakEvenIsByWhatDecides) {
  const std::vector<Sized> options{option(0, 256, 15, 1.5e6), option(1, 64, 28, 1.6e6),
                                   option(1, 256, 12, 4.0e6), option(2, 8, 90, 1e5)};
  const Goal budget{.budget_usd = 2e6};
  const std::vector<BreakEven> faster = break_even(options, choose(options, budget), budget);
  ASSERT_EQ(faster.size(), 1U);  // the third is slower at any price
  EXPECT_EQ(faster[0].option, 2U);
  EXPECT_NEAR(faster[0].usd_per_gpu_hour, 2e6 / (12 * 24 * 256), 1e-9);
  EXPECT_NEAR(*faster[0].distance, 2, 1e-9);

  const std::vector<Sized> two{option(0, 256, 15, 1.5e6), option(1, 64, 28, 1.6e6)};
  const std::vector<BreakEven> product = break_even(two, choose(two, {}), {});
  ASSERT_EQ(product.size(), 1U);
  EXPECT_NEAR(product[0].usd_per_gpu_hour, 1.5e6 * 15 / (28 * 28 * 24 * 64), 1e-9);
  for (const auto& even : {faster, product}) EXPECT_GT(*even[0].distance, 1);  // it did lose
}

TEST(Sizing, ExpertsAreDividedAndDataParallelismIsKeptBesideTheAnswer) {
  Offer offer = offer_of("dgx-h100");
  offer.profile = profiles::load_profile("dgx-h100", "torch-compile");
  offer.model_parallel = profiles::load_profile("dgx-h100", "megatron-core");
  const auto option = [&](const char* name) {
    const Model model = model_of(name);
    SizingJob job = job_of(model, 1e12);
    // An expert a rank, as trained routers choose, would leave the busiest one half as much again.
    if (model.is_moe()) job.fixed.parallel.expert_load = ExpertLoad{Routing::kBalanced, {}, {}};
    job.fixed.strategies.clear();
    job.fixed.recompute.reset();
    job.gpus = 64;
    const Sweep sweep = shardwright::tuner::sweep(model, {offer}, job);
    return sweep.options.at(0);
  };
  const Sized dense = option("llama-3-8b");
  // What shards data alone is kept beside the answer where that is model-parallel.
  if (dense.prediction.plan.stack == "megatron-core") {
    ASSERT_TRUE(dense.plain.has_value());
    EXPECT_EQ(dense.plain->plan.stack, "torch-compile");
    EXPECT_GT(dense.plain->days, dense.cost.days);
  }
  const Sized mixture = option("mixtral-8x7b");
  EXPECT_EQ(mixture.prediction.plan.stack, "megatron-core");
  EXPECT_GT(mixture.prediction.plan.parallel.ep, 1);
  EXPECT_EQ(profile_for(offer, mixture.prediction.plan).stack.id, "megatron-core");
}

TEST(Sizing, SizesInBetweenJoinTheSweepAtItsEnd) {
  const Model model = model_of("llama-3-8b");
  SizingJob job = job_of(model, 1e12);
  job.max_gpus = 16;
  const std::vector<Offer> offers{offer_of("dgx-h100")};
  Sweep result = sweep(model, offers, job);
  const std::size_t before = result.options.size();
  sweep_between(model, offers, job, {{0, 24}}, result);
  ASSERT_EQ(result.options.size(), before + 1);
  EXPECT_EQ(result.options.back().gpus(), 24);
  EXPECT_TRUE(result.options.back().between);
  for (const Growth& growth : scaling_of(model, offers[0], 0, result).growth)
    EXPECT_LE(growth.to, before);
}

// Eight PCIe nodes with one slow card each: there must be a point where more of them do not pay.
TEST(Knee, IsFoundAndItsCausesAddUp) {
  const Model model = model_of("llama-3-8b");
  SizingJob job = job_of(model, 1e12);
  job.fixed.strategies = {Strategy::kYafsdp};
  job.fixed.global_batch = 256;
  const std::vector<Offer> offers{offer_of("a2-ultra")};
  const Sweep result = sweep(model, offers, job);
  const Scaling scaling = scaling_of(model, offers[0], 0, result);
  ASSERT_TRUE(scaling.stops.has_value());
  ASSERT_TRUE(scaling.causes.has_value());
  const Growth& stops = scaling.growth[*scaling.stops];
  EXPECT_EQ(scaling.knee, stops.from);
  EXPECT_FALSE(stops.pays());
  for (std::size_t i = 0; i < *scaling.stops; ++i) EXPECT_TRUE(scaling.growth[i].pays());
  const Causes& causes = *scaling.causes;
  EXPECT_NEAR(causes.communication + causes.compute + causes.host + causes.optimizer +
                  causes.tokens + causes.failures,
              stops.dearer, 1e-6);
  EXPECT_GT(causes.communication, 0.4 * stops.dearer);
  EXPECT_GE(causes.latency, 0);
  EXPECT_LT(causes.latency, 1);
  EXPECT_TRUE(scaling.batch_limit);  // 256 sequences are none for 512 GPUs
}

// The published times of Llama-3-70B on 256 GPUs are 7.17 and 9.76 s for the same tokens:
// 256 * 7.17 / 9.76 = 188.07 GPUs do the work of 256, 67.93 are saved; at 4.10 USD for 730 hours
// a month that is 203,327 USD. For 150 GPUs to be saved, the fleet has 150 / (1 - 7.17 / 9.76) =
// 565 GPUs, and 0.5 to 1.5 million dollars are 4.57 to 13.70 USD per GPU hour: list prices.
TEST(CompareStrategies, ArithmeticOfTheYafsdpAnnouncementByHand) {
  const double tokens = 2048;
  const EqualThroughput saved = equal_throughput(256, tokens / 7.17, tokens / 9.76, 4.10);
  EXPECT_NEAR(saved.gpus_needed, 188.07, 0.01);
  EXPECT_NEAR(saved.gpus_saved, 67.93, 0.01);
  EXPECT_NEAR(*saved.usd_per_month, 67.9344 * 4.10 * 730, 1);
  EXPECT_FALSE(equal_throughput(256, 2, 1, 0).usd_per_month.has_value());
  const double fleet = 150 / (1 - 7.17 / 9.76);
  EXPECT_NEAR(equal_throughput(fleet, 1 / 7.17, 1 / 9.76, 0.5e6 / 150 / 730).gpus_saved, 150, 1e-9);
  EXPECT_NEAR(*equal_throughput(fleet, 1 / 7.17, 1 / 9.76, 0.5e6 / 150 / 730).usd_per_month, 0.5e6,
              1);
}

TEST(CompareStrategies, PredictedFleetsHaveTheSameThroughput) {
  const Model model = model_of("llama-3-70b");
  std::vector<Offer> offers{offer_of("a100-80g-4xhdr200", 4.10)};
  offers[0].profile = profiles::load_profile("a100-80g-4xhdr200", "hf-eager");
  SizingJob job = job_of(model, 15e12);
  job.fixed.seq_len = 2048;
  job.fixed.micro_batch = 1;
  job.fixed.grad_accum = 1;
  const Savings savings =
      compare_strategies(model, offers, 0, job, 256, {Strategy::kFsdp1, Strategy::kYafsdp});
  EXPECT_EQ(savings.faster.plan.strategy, Strategy::kYafsdp);
  EXPECT_FALSE(savings.executed_alike);
  const double by_hand =
      256 * (1 - savings.slower.time.tokens_per_s / savings.faster.time.tokens_per_s);
  EXPECT_NEAR(savings.equal.gpus_saved, by_hand, 1e-6);
  EXPECT_GT(savings.equal.gpus_saved, 256 * 0.1);
  EXPECT_EQ(savings.whole_node_gpus % 8, 0);
  EXPECT_GE(savings.whole_node_tokens_per_s, savings.slower.time.tokens_per_s);
  EXPECT_NEAR(static_cast<double>(savings.whole_node_gpus), savings.equal.gpus_needed, 16);
  EXPECT_THROW(compare_strategies(model, offers, 0, job, 8, {Strategy::kFsdp1, Strategy::kYafsdp}),
               Error);
}

}  // namespace
}  // namespace shardwright::tuner
