// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/dispatch_cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

namespace shardwright::sim {
namespace {

DispatchShape deepseek(std::int64_t ranks, std::int64_t in_domain) {
  return {.tokens = 4096,
          .token_bytes = 7168,
          .experts = 256,
          .per_token = 8,
          .ranks = ranks,
          .ranks_in_domain = in_domain};
}

TEST(DispatchCost, DistinctPlacesAreThoseOfARandomDraw) {
  std::mt19937 random(3);
  for (const std::int64_t places : {2, 8, 32}) {
    double sum = 0;
    constexpr int kDraws = 4000;
    for (int i = 0; i < kDraws; ++i) {
      std::set<std::uint64_t> experts, reached;
      while (experts.size() < 8) experts.insert(random() % 256);
      for (const std::uint64_t expert : experts)
        reached.insert(expert * static_cast<std::uint64_t>(places) / 256);
      sum += static_cast<double>(reached.size());
    }
    EXPECT_NEAR(distinct_places(256, 8, places), sum / kDraws, 0.05) << places;
  }
  EXPECT_EQ(distinct_places(256, 8, 1), 1);
  EXPECT_DOUBLE_EQ(distinct_places(8, 8, 4), 4);
}

TEST(DispatchCost, AnAllToAllSendsARowForEachExpertThatIsElsewhere) {
  const profiles::ExchangeParams params;
  const DispatchCost cost = exchange_cost(params, deepseek(8, 8), 0);
  EXPECT_DOUBLE_EQ(cost.sent_bytes, 4096.0 * 8 * 7168 * 7 / 8);
  EXPECT_EQ(exchange_cost(params, deepseek(1, 1), 0).time_s, 0);
  EXPECT_TRUE(std::isinf(exchange_cost(params, deepseek(16, 8), 0).time_s));
  // Over one NIC a rank, half of the rows leave the domain.
  EXPECT_NEAR(exchange_cost(params, deepseek(16, 8), 50e9).time_s,
              4096.0 * 8 * 7168 / 2 / 50e9 + params.base_s, 1e-9);
}

TEST(DispatchCost, KernelsForExpertsSendATokenOnceToEachDomain) {
  const profiles::DispatchParams params;
  const double exchanged = exchange_cost({}, deepseek(32, 8), 50e9).time_s;
  DispatchShape shape = deepseek(32, 8);
  const double dispatched = dispatch_cost(params, shape, 50e9, 24).time_s;
  EXPECT_LT(dispatched, 0.6 * exchanged);
  shape.domains_per_token = 2;  // node-limited routing
  EXPECT_LT(dispatch_cost(params, shape, 50e9, 24).time_s, 0.7 * dispatched);
}

TEST(DispatchCost, TheBusiestRankIsWaitedForAndItsDomainLess) {
  const double slow_nic = 1e8;
  DispatchShape shape = deepseek(16, 8);
  const profiles::ExchangeParams exchange;
  const double even = exchange_cost(exchange, shape, slow_nic).time_s - exchange.base_s;
  const double dispatched = dispatch_cost({}, shape, slow_nic, 24).time_s;
  const DispatchCost before = exchange_cost(exchange, shape, slow_nic);
  shape.busiest = 1.5;
  const DispatchCost after = exchange_cost(exchange, shape, slow_nic);
  EXPECT_NEAR((after.time_s - exchange.base_s) / even, 1.5, 1e-9);
  EXPECT_EQ(after.sent_bytes, before.sent_bytes) << "a rank sends its own tokens";
  EXPECT_NEAR(dispatch_cost({}, shape, slow_nic, 24).time_s / dispatched, 1 + 0.5 / std::sqrt(8.0),
              1e-3)
      << "kernels for experts bring tokens to a domain once";
}

TEST(DispatchCost, FewerSmsAreSlowerUntilTheLinkIsFull) {
  const profiles::DispatchParams params;
  double before = INFINITY;
  for (const int sms : {4, 8, 12, 16, 20, 24}) {
    const double time = dispatch_cost(params, deepseek(8, 8), 0, sms).time_s;
    EXPECT_LE(time, before);
    before = time;
  }
  EXPECT_NEAR(dispatch_cost(params, deepseek(8, 8), 0, 4).time_s /
                  dispatch_cost(params, deepseek(8, 8), 0, 8).time_s,
              2, 0.2);
}

}  // namespace
}  // namespace shardwright::sim
