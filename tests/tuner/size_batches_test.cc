// SPDX-License-Identifier: Apache-2.0
// The promise of `size` about batches: for a number of GPUs no batch that it may choose makes the
// whole run shorter than its answer, and more GPUs do not take longer. Over random requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>

#include "profiles/data_file.h"
#include "sim/core/hf/config.h"
#include "tests/tuner/models.h"
#include "tuner/size/sizing.h"
#include "tuner/size/sizing_choice.h"

namespace shardwright::tuner {
namespace {

using ::testing::ElementsAre;

constexpr int kRequests = 8;  // SHARDWRIGHT_REQUESTS tries others

Offer both_ways(const char* cluster) {
  Offer offer;
  offer.name = cluster;
  offer.profile = profiles::load_profile(cluster, "torch-compile");
  offer.model_parallel = profiles::load_profile(cluster, "megatron-core");
  offer.usd_per_gpu_hour = 2;
  offer.price = {2, {2, 2}, "", {}};
  return offer;
}

SizingJob asked(const Model& model, double tokens, std::int64_t gpus) {
  SizingJob job;
  job.fixed.seq_len = std::min<std::int64_t>(model.max_positions, 4096);
  job.fixed.attention = AttentionKind::kFlash;
  job.run = usual_conditions(model, tokens, job.fixed.seq_len);
  job.run.free_tokens = uncounted_tokens(job.run);  // as of a batch that is chosen
  job.gpus = gpus;
  return job;
}

double days_of(const Model& model, const std::vector<Offer>& offers, const SizingJob& job) {
  const Sweep result = sweep(model, offers, job);
  return result.options.empty() ? 0 : result.options.front().cost.days;
}

TEST(SizeBatches, EveryNumberOfReplicasFindsNearlyItsLargest) {
  EXPECT_THAT(shared_batches(8192, 1024), ElementsAre(8192));
  EXPECT_THAT(shared_batches(1000, 16384, 8), ElementsAre(2048));  // none below: the smallest
  EXPECT_THAT(plain_batches(2048, 88), ElementsAre(20 * 88));  // 23 would leave micro-batches of 1
  EXPECT_THAT(plain_batches(2270, 880), ElementsAre(2 * 880, 3 * 880));
  EXPECT_THAT(plain_batches(1024, 1 << 20), ElementsAre(1 << 20));  // grows where it must
  for (const std::int64_t gpus : {9216, 8704, 720, 24, 6888}) {
    const std::vector<std::int64_t> batches = shared_batches(8192, gpus);
    EXPECT_LE(batches.size(), 8U) << gpus;
    for (std::int64_t ranks = 1; ranks <= 1024; ++ranks) {
      if (gpus % ranks != 0) continue;
      const std::int64_t replicas = gpus / ranks, most = 8192 / replicas * replicas;
      if (most == 0) continue;
      EXPECT_TRUE(std::any_of(batches.begin(), batches.end(),
                              [&](std::int64_t batch) {
                                return batch % replicas == 0 &&
                                       static_cast<double>(batch) >=
                                           0.95 * static_cast<double>(most);
                              }))
          << gpus << " / " << ranks;
    }
  }
}

TEST(SizeBatches, LargerOnesOnlyWhereAGpuHasFewSequences) {
  const Model model = model_of("llama-3-70b");
  const SizingJob job = asked(model, 15e12, 0);
  EXPECT_EQ(batch_caps(job, 64).size(), 1U);
  const std::vector<double> caps = batch_caps(job, 8192);
  ASSERT_GE(caps.size(), 2U);
  EXPECT_NEAR(caps.back() * 4096, job.run.published_tokens, 1);
  for (std::size_t i = 1; i < caps.size(); ++i) EXPECT_LT(caps[i], 1.9 * caps[i - 1]) << i;
}

// Numbers of GPUs at which steps of one sequence a GPU outgrow the usual batch by a little used to
// be planned with data parallelism alone and 40 % more tokens.
TEST(SizeBatches, SizesBetweenPowersOfTwoTakeNoMoreDays) {
  const Model model = model_of("llama-3-70b");
  const std::vector<Offer> offers{both_ways("voltage-park-h100")};
  double least = 1e18;
  for (const std::int64_t gpus : {8192, 9216, 10240}) {
    SizingJob job = asked(model, 15e12, gpus);
    job.fixed.seq_len = 2048;
    job.fixed.micro_batch = 1;
    job.run.usual_tokens = usual_batch_tokens(job.run.critical_tokens, 2048);
    const double days = days_of(model, offers, job);
    EXPECT_LT(days, 1.04 * least) << gpus;
    least = std::min(least, days);
    job.fixed.global_batch = gpus / 2;
    EXPECT_LT(days, 1.025 * days_of(model, offers, job)) << gpus;
  }
}

int requests_of(int usual) {
  const char* asked_for = std::getenv("SHARDWRIGHT_REQUESTS");
  return asked_for != nullptr ? std::stoi(asked_for) : usual;
}

/// What random requests are made of.
const std::vector<std::pair<const char*, double>>& models() {
  static const std::vector<std::pair<const char*, double>> all{
      {"llama-3-8b", 2e12}, {"llama-2-13b", 1e12}, {"llama-3-70b", 15e12}, {"mixtral-8x7b", 5e12}};
  return all;
}

const std::vector<std::vector<Offer>>& clusters() {
  static const std::vector<std::vector<Offer>> all{{both_ways("dgx-h100")},
                                                   {both_ways("dgx-b200")}};
  return all;
}

TEST(SizeBatches, NoBatchThatMayBeChosenIsBetterOverRandomRequests) {
  std::mt19937 random(7);
  int compared = 0;
  const int requests = requests_of(kRequests);
  for (int i = 0; i < requests; ++i) {
    const auto& [name, tokens] = models()[random() % models().size()];
    const std::vector<Offer>& offer = clusters()[random() % clusters().size()];
    const Model model = model_of(name);
    const std::int64_t gpus =
        8 * static_cast<std::int64_t>(1 + random() % (1 << (2 + random() % 9)));
    SizingJob job = asked(model, tokens, gpus);
    const double days = days_of(model, offer, job);
    if (days <= 0) continue;
    const std::int64_t replicas = gpus >> random() % 6;
    if (replicas == 0 || gpus % replicas != 0) continue;
    const auto most = static_cast<std::uint64_t>(job.run.published_tokens /
                                                 static_cast<double>(job.fixed.seq_len * replicas));
    if (most < 1) continue;
    SizingJob other = job;
    other.fixed.global_batch = replicas * static_cast<std::int64_t>(1 + random() % most);
    const double others = days_of(model, offer, other);
    if (others <= 0) continue;
    EXPECT_LT(days, 1.03 * others) << name << " on " << gpus << " of " << offer.front().name
                                   << " with " << *other.fixed.global_batch;
    ++compared;
  }
  EXPECT_GT(compared, requests / 3);
}

// Up to where a GPU is left with one sequence of a step, more of them do not take longer.
TEST(SizeBatches, MoreGpusTakeNoMoreDaysOverRandomRequests) {
  std::mt19937 random(11);
  int compared = 0;
  const int requests = requests_of(kRequests);
  for (int i = 0; i < requests; ++i) {
    const auto& [name, tokens] = models()[random() % models().size()];
    const std::vector<Offer>& offer = clusters()[random() % clusters().size()];
    const Model model = model_of(name);
    const std::int64_t nodes = 1 + static_cast<std::int64_t>(random() % (1U << (2 + random() % 9)));
    const std::int64_t more =
        nodes + 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(nodes));
    const SizingJob few = asked(model, tokens, 8 * nodes), many = asked(model, tokens, 8 * more);
    const double sequences = many.run.published_tokens / static_cast<double>(many.fixed.seq_len);
    if (static_cast<double>(*many.gpus) > sequences) continue;
    const double days = days_of(model, offer, few), days_of_more = days_of(model, offer, many);
    if (days <= 0 || days_of_more <= 0) continue;
    EXPECT_LT(days_of_more, 1.03 * days) << name << " of " << offer.front().name << ": "
                                         << 8 * nodes << " and " << 8 * more << " GPUs";
    ++compared;
  }
  EXPECT_GT(compared, requests / 3);
}

// The sizes that are named are the smallest: a step of the search below them misses the goal.
TEST(SizeBatches, NothingSmallerMeetsTheGoalOverRandomRequests) {
  std::mt19937 random(1);
  int compared = 0;
  const int requests = requests_of(1);
  for (int i = 0; i < requests; ++i) {
    const auto& [name, tokens] = models()[random() % models().size()];
    const std::vector<Offer>& offer = clusters()[random() % clusters().size()];
    const Model model = model_of(name);
    SizingJob job = asked(model, tokens, 0);
    job.gpus.reset();
    job.max_gpus = 1024;
    const Goal goal{.deadline_days = 20.0 + static_cast<double>(random() % 200)};
    SweepOptions near;
    near.near_days = goal.deadline_days;
    Sweep sizes = sweep(model, offer, job, near);
    refine(model, offer, job, goal, sizes);
    polish(model, offer, job, goal, sizes);
    const Choice choice = choose(sizes.options, goal);
    if (!choice.safe || !choice.smallest || !choice.smallest_safe) continue;
    for (const auto& [smallest, does] :
         {std::pair{*choice.smallest, &meets}, {*choice.smallest_safe, &meets_safely}}) {
      const std::int64_t gpus = sizes.options[smallest].gpus();
      EXPECT_TRUE(does(sizes.options[smallest], goal));
      const std::int64_t nodes = gpus / 8 - std::max<std::int64_t>(1, gpus / 8 / 24);
      if (nodes < 1) continue;
      const Sweep smaller = sweep(model, offer, asked(model, tokens, 8 * nodes));
      if (smaller.options.empty()) continue;
      EXPECT_FALSE(does(smaller.options.front(), goal))
          << name << " of " << offer.front().name << " in " << *goal.deadline_days
          << " days: " << gpus << " GPUs, but " << 8 * nodes << " do";
      ++compared;
    }
  }
  EXPECT_GT(compared, requests / 3);
}

}  // namespace
}  // namespace shardwright::tuner
