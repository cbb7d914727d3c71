// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/collectives.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "profiles/gpu_cost.h"
#include "sim/core/cluster.h"

namespace shardwright::sim {

namespace {

constexpr double kGi = 1024.0 * 1024 * 1024;
constexpr std::array kAll{Collective::kAllGather, Collective::kReduceScatter,
                          Collective::kAllReduce, Collective::kBroadcast};

class Collectives : public ::testing::Test {
 protected:
  const profiles::CollectiveParams& params(const std::string& gpu) const {
    return costs_.at(gpu).collectives.values;
  }
  CollectiveCost one_node(const std::string& gpu, std::int64_t ranks, Collective collective,
                          double bytes) const {
    return collective_cost(params(gpu), {}, {.ranks = ranks, .ranks_per_node = ranks}, collective,
                           bytes);
  }
  static double bus(const CollectiveCost& cost) { return cost.wire_bytes / cost.time_s / 1e9; }

  const profiles::GpuCosts costs_ = profiles::load_gpu_costs();
  // 8 x HDR200 and 4 x HDR200 per node of eight A100, AMD hosts.
  const NodeNetwork hdr8_{.bytes_per_s = 192e9, .per_gpu_bytes_per_s = 24e9, .amd_host = true};
  const NodeNetwork hdr4_{.bytes_per_s = 96e9, .amd_host = true};
};

// Published bus bandwidths outside the fitted tables: far larger messages, other GPUs, four ranks.
// The ceilings (kRingOverNominal, nominal_nvls_bytes_per_s) were set with the rows of 8 GiB and
// more in view; the others are predictions.
TEST_F(Collectives, ExtendsToPublishedSizesAndGpusBeyondTheFittedTables) {
  struct Published {
    const char* gpu;
    std::int64_t ranks;
    Collective collective;
    double bytes;
    double bus_gb_s;
  };
  const Published rows[] = {
      {"h200", 8, Collective::kAllGather, 16 * kGi, 361},      // stas00/ml-engineering
      {"h200", 8, Collective::kReduceScatter, 16 * kGi, 363},  // stas00/ml-engineering
      {"h200", 8, Collective::kAllReduce, 16 * kGi, 480},      // stas00/ml-engineering
      {"a100-80g", 8, Collective::kAllReduce, 8 * kGi, 231},   // Azure/AI-benchmarking-guide
      {"a100-80g", 8, Collective::kAllReduce, kGi, 228},       // Azure/AI-benchmarking-guide
      {"h100-80g", 8, Collective::kAllReduce, kGi, 466},       // Azure/AI-benchmarking-guide
      {"h100-80g", 8, Collective::kAllReduce, 67e6, 362},      // Azure/AI-benchmarking-guide
      {"b200", 8, Collective::kAllReduce, 16 * kGi, 846},      // stas00/ml-engineering
      {"gb200", 4, Collective::kAllGather, kGi / 2, 564},      // aiconfigurator
      {"gb200", 4, Collective::kReduceScatter, kGi / 2, 549},  // aiconfigurator
      {"b300", 8, Collective::kAllGather, kGi / 2, 621},       // aiconfigurator
  };
  for (const Published& row : rows) {
    const double predicted = bus(one_node(row.gpu, row.ranks, row.collective, row.bytes));
    EXPECT_NEAR(predicted / row.bus_gb_s, 1, 0.05)
        << row.gpu << " " << name_of(row.collective) << " " << row.bytes;
  }
}

TEST_F(Collectives, ChoosesAsNcclDoesInsideANode) {
  const auto protocol = [&](const std::string& gpu, double bytes) {
    return one_node(gpu, 8, Collective::kAllGather, bytes).protocol;
  };
  EXPECT_EQ(protocol("a100-80g", 1e6), Protocol::kLl);
  EXPECT_EQ(protocol("a100-80g", 8e6), Protocol::kLl128);
  EXPECT_EQ(protocol("a100-80g", 20e6), Protocol::kSimple);
  EXPECT_EQ(protocol("h100-80g", 20e6), Protocol::kLl128);
  EXPECT_EQ(protocol("h100-80g", 30e6), Protocol::kSimple);
  // The switch reduces, it does not gather: NVLS serves all_reduce only.
  EXPECT_EQ(one_node("h100-80g", 8, Collective::kAllReduce, 1e9).algorithm, Algorithm::kNvls);
  EXPECT_EQ(one_node("h100-80g", 8, Collective::kAllGather, 1e9).algorithm, Algorithm::kRing);
  EXPECT_EQ(one_node("a100-80g", 8, Collective::kAllReduce, 1e9).algorithm, Algorithm::kRing);
  // No LL128 over PCIe.
  for (double bytes = 1e3; bytes < 1e10; bytes *= 3)
    EXPECT_NE(protocol("l40s", bytes), Protocol::kLl128);
}

// The two collectives of a Llama-2-34B layer on 256 A100s in the published YaFSDP timeline.
TEST_F(Collectives, ReproducesTheYaFsdpTimelineOfALlama34bLayer) {
  const CollectiveGroup group{.ranks = 256, .ranks_per_node = 8};
  const double parameters = 692e6;
  const double gather =
      collective_cost(params("a100-80g"), hdr4_, group, Collective::kAllGather, 2 * parameters)
          .time_s;
  const double reduce =
      collective_cost(params("a100-80g"), hdr4_, group, Collective::kReduceScatter, 4 * parameters)
          .time_s;
  EXPECT_NEAR(gather / 15.3e-3, 1, 0.08);
  EXPECT_NEAR(reduce / 30.3e-3, 1, 0.03);
}

// The README's table: 128 more ranks cost 0.83 ms per collective, 6.5 us each.
TEST_F(Collectives, LatencyBetweenNodesGrowsBySevenMicrosecondsPerRankOnAmdHosts) {
  const auto time = [&](std::int64_t ranks) {
    return collective_cost(params("a100-80g"), hdr4_, {.ranks = ranks, .ranks_per_node = 8},
                           Collective::kAllGather, 1.4e9)
        .time_s;
  };
  EXPECT_NEAR((time(256) - time(128)) / 128, 7e-6, 0.6e-6);
}

TEST_F(Collectives, ReplicateGroupsShareTheNics) {
  const CollectiveGroup alone{.ranks = 16, .ranks_per_node = 1};
  const CollectiveGroup eight{.ranks = 16, .ranks_per_node = 1, .groups_per_node = 8};
  NodeNetwork unlimited = hdr8_;
  unlimited.per_gpu_bytes_per_s = 0;
  const auto time = [&](const NodeNetwork& network, const CollectiveGroup& group) {
    return collective_cost(params("a100-80g"), network, group, Collective::kAllReduce, 1e9).time_s;
  };
  EXPECT_NEAR(time(hdr8_, eight), 2e9 * 15 / 16 / 24e9, 2e-3);
  EXPECT_DOUBLE_EQ(time(hdr8_, alone), time(hdr8_, eight));  // one GPU has one NIC
  EXPECT_LT(time(unlimited, alone), 0.3 * time(unlimited, eight));
  // PAT needs one rank per node, and beats the ring on many nodes and little data.
  const CollectiveGroup many{.ranks = 256, .ranks_per_node = 1, .groups_per_node = 8};
  EXPECT_EQ(collective_cost(params("a100-80g"), hdr8_, many, Collective::kAllGather, 4e6).algorithm,
            Algorithm::kPat);
}

TEST_F(Collectives, NoPeersOrNoBytesCostNothingAndUnlinkedNodesNeverFinish) {
  for (const Collective collective : kAll) {
    EXPECT_EQ(one_node("a100-80g", 1, collective, 1e9).time_s, 0);
    EXPECT_EQ(one_node("a100-80g", 1, collective, 1e9).channels, 0);
    EXPECT_EQ(one_node("a100-80g", 8, collective, 0).time_s, 0);
    EXPECT_TRUE(std::isinf(
        collective_cost(params("a100-80g"), {}, {.ranks = 16, .ranks_per_node = 8}, collective, 1e6)
            .time_s));
  }
}

TEST_F(Collectives, CountsWireBytesAsTheVolumeFormulasDo) {
  EXPECT_DOUBLE_EQ(one_node("h200", 8, Collective::kAllGather, 8e6).wire_bytes, 7e6);
  EXPECT_DOUBLE_EQ(one_node("h200", 8, Collective::kReduceScatter, 8e6).wire_bytes, 7e6);
  EXPECT_DOUBLE_EQ(one_node("h200", 8, Collective::kAllReduce, 8e6).wire_bytes, 14e6);
  EXPECT_DOUBLE_EQ(one_node("h200", 8, Collective::kBroadcast, 8e6).wire_bytes, 8e6);
}

TEST_F(Collectives, NeverFasterWithMoreBytesOnAnyGpuAndGroup) {
  for (const auto& [id, cost] : costs_.gpus) {
    for (const Collective collective : kAll) {
      for (const auto& [ranks, per_node, groups] :
           {std::tuple{2, 2, 1}, {4, 4, 1}, {8, 8, 1}, {16, 8, 1}, {256, 8, 1}, {32, 1, 8}}) {
        double last = 0;
        for (double bytes = 64; bytes < 1e11; bytes *= 1.07) {
          const double t =
              collective_cost(
                  cost.collectives.values, hdr8_,
                  {.ranks = ranks, .ranks_per_node = per_node, .groups_per_node = groups},
                  collective, bytes)
                  .time_s;
          ASSERT_GE(t, last * (1 - 1e-12)) << id << " " << name_of(collective) << " " << ranks
                                           << "/" << per_node << " " << bytes;
          last = t;
        }
      }
    }
  }
}

TEST_F(Collectives, NeverFasterWithLessBandwidth) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> exponent(3, 10.5);
  for (const char* id : {"a100-80g", "h100-80g", "b200", "l40s"}) {
    for (int i = 0; i < 2000; ++i) {
      const double bytes = std::pow(10, exponent(random));
      for (const Collective collective : kAll) {
        NodeNetwork cut = hdr8_;
        cut.bytes_per_s *= 0.6;
        const CollectiveGroup across{.ranks = 64, .ranks_per_node = 8};
        ASSERT_GE(collective_cost(params(id), cut, across, collective, bytes).time_s,
                  collective_cost(params(id), hdr8_, across, collective, bytes).time_s);
        NodeNetwork capped;
        capped.intra_cap_bytes_per_s = 100e9;
        NodeNetwork lower = capped;
        lower.intra_cap_bytes_per_s = 5e9;
        const CollectiveGroup inside{.ranks = 8, .ranks_per_node = 8};
        const double t = collective_cost(params(id), {}, inside, collective, bytes).time_s;
        const double t100 = collective_cost(params(id), capped, inside, collective, bytes).time_s;
        ASSERT_GE(t100, t);
        ASSERT_GE(collective_cost(params(id), lower, inside, collective, bytes).time_s, t100);
      }
    }
  }
}

TEST_F(Collectives, MoreRanksNeverFinishAGatherOfManyBytesSooner) {
  for (const char* id : {"a100-80g", "h100-80g", "b200", "l40s"}) {
    for (const double bytes : {64.0, 3e8, 5e9}) {
      double last = 0;
      for (std::int64_t ranks = 2; ranks <= 8; ++ranks) {
        const double t = one_node(id, ranks, Collective::kAllGather, bytes).time_s;
        EXPECT_GE(t, last) << id << " " << bytes << " " << ranks;
        last = t;
      }
      for (std::int64_t ranks = 16; ranks <= 4096; ranks *= 2) {
        const double t = collective_cost(params(id), hdr8_, {.ranks = ranks, .ranks_per_node = 8},
                                         Collective::kAllGather, bytes)
                             .time_s;
        EXPECT_GE(t, last) << id << " " << bytes << " " << ranks;
        last = t;
      }
    }
  }
}

TEST_F(Collectives, SmallMessagesTakeFewSms) {
  EXPECT_EQ(one_node("a100-80g", 8, Collective::kAllGather, 1e3).channels, 1);
  EXPECT_EQ(one_node("a100-80g", 8, Collective::kAllGather, 1e9).channels, 24);
  EXPECT_EQ(collective_cost(params("a100-80g"), hdr8_, {.ranks = 256, .ranks_per_node = 8},
                            Collective::kReduceScatter, 1e9)
                .channels,
            16);
}

TEST_F(Collectives, TakesTheNetworkOfACluster) {
  Cluster cluster;
  cluster.nics_per_node = 4;
  cluster.nic_bytes_per_s = 25e9;
  cluster.nic_efficiency = 0.9;
  cluster.amd_host = true;
  cluster.net_latency_s = 1e-6;
  const NodeNetwork network = network_of(cluster);
  EXPECT_DOUBLE_EQ(network.bytes_per_s, 90e9);
  EXPECT_TRUE(network.amd_host);
  EXPECT_DOUBLE_EQ(network.hop_latency_s, 1e-6);
}

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
