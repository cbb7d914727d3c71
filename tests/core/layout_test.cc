// SPDX-License-Identifier: Apache-2.0
// Racks are filled evenly, in whole trays, and cut no group that could stay whole.
#include "sim/core/layout.h"

#include <algorithm>
#include <map>

#include "tests/core/common.h"

namespace shardwright {

namespace {

constexpr std::int64_t kRack = 72;

TEST(Rack, PowersOfTwoTake64Of72) {
  for (const std::int64_t gpus : {128, 256, 1024, 4096})
    EXPECT_EQ(gpus_of_each_rack(gpus, kRack), 64) << gpus;
}

TEST(Rack, WholeRacksAndPartsOfOneAreTakenAsTheyAre) {
  EXPECT_EQ(gpus_of_each_rack(1152, kRack), 72);
  for (const std::int64_t gpus : {1, 4, 36, 72}) EXPECT_EQ(gpus_of_each_rack(gpus, kRack), gpus);
}

TEST(Rack, GroupsStayWholeWhereTheyCan) {
  EXPECT_EQ(gpus_of_each_rack(1152, kRack, 64), 64) << "18 racks of 64 rather than 16 of 72";
  EXPECT_EQ(gpus_of_each_rack(1152, kRack, 8), 72);
  EXPECT_EQ(gpus_of_each_rack(720, kRack, 32), 72) << "neither 64 nor 32 divides 720 in halves";
}

TEST(Rack, WhereNothingDividesTheLastRackHoldsTheRest) {
  // 37 trays: no equal number of trays but one.
  EXPECT_EQ(gpus_of_each_rack(148, kRack), 52);
  EXPECT_LE(gpus_of_each_rack(1036, kRack), kRack);
  EXPECT_EQ(gpus_of_each_rack(1036, kRack) % kGpusPerTray, 0);
}

TEST(Rack, AJobFindsNodesOfWhatItFills) {
  Cluster cluster;
  cluster.gpus_per_node = cluster.nics_per_node = kRack;
  const Cluster job = filled(cluster, 1024);
  EXPECT_EQ(job.gpus_per_node, 64);
  EXPECT_EQ(job.nics_per_node, 64);
  EXPECT_EQ(nvlink_gpus(job), kRack);
  EXPECT_EQ(filled(cluster, 64).gpus_per_node, kRack) << "within one rack nothing changes";
  cluster.gpus_per_node = 8;
  EXPECT_EQ(filled(cluster, 1024).gpus_per_node, 8);
}

}  // namespace

// Places and groups of ranks against counting: every layout of up to 64 ranks, in all orders of the
// dimensions.

namespace {

using Ranks = std::vector<std::int64_t>;

constexpr std::array<CommGroup, kCommGroups> kAll = {
    CommGroup::kShard,  CommGroup::kReplicate, CommGroup::kSecondShard, CommGroup::kWorld,
    CommGroup::kTensor, CommGroup::kContext,   CommGroup::kExpert,      CommGroup::kExpertData,
    CommGroup::kData,   CommGroup::kPipeline};

std::vector<std::string> all_orders() {
  std::vector<std::string> words = {"cp", "dp", "pp", "tp"}, orders;
  do {
    orders.push_back("ep-" + words[0] + "-" + words[1] + "-" + words[2] + "-" + words[3]);
  } while (std::next_permutation(words.begin(), words.end()));
  return orders;
}

Ranks divisors(std::int64_t n) {
  Ranks result;
  for (std::int64_t d = 1; d <= n; ++d) {
    if (n % d == 0) result.push_back(d);
  }
  return result;
}

/// Ranks by counting: the dimensions' digits in the order of the plan.
class Counted {
 public:
  explicit Counted(const Plan& plan, std::int64_t shard) : plan_(plan), shard_(shard) {
    const Parallelism& p = plan.parallel;
    std::map<std::string, std::int64_t> sizes = {{"tp", p.tp}, {"cp", p.cp}, {"pp", p.pp}};
    sizes["dp"] = plan.gpus / p.replica();
    sizes["ep"] = 1;
    std::map<std::string, std::int64_t> digits;
    for (std::int64_t rank = 0; rank < plan.gpus; ++rank) {
      places_.push_back({digits["tp"], digits["cp"], digits["dp"], digits["pp"]});
      std::string order = p.rank_order;
      for (std::size_t at = 0; at < order.size(); at += 3) {
        const std::string word = order.substr(at, 2);
        if (++digits[word] < sizes[word]) break;
        digits[word] = 0;
      }
    }
    std::map<std::int64_t, std::int64_t> in_stage;
    for (RankPlace& place : places_) {
      const std::int64_t i = in_stage[place.pp]++;
      place.etp = i % p.etp;
      place.ep = i / p.etp % p.ep;
      place.edp = i / p.etp / p.ep;
    }
  }

  const RankPlace& place(std::int64_t rank) const {
    return places_[static_cast<std::size_t>(rank)];
  }

  /// All groups of a kind: ranks that differ in what the kind divides alone, in its order.
  std::vector<Ranks> groups(CommGroup which) const {
    std::map<std::vector<std::int64_t>, std::map<std::int64_t, std::int64_t>> groups;
    for (std::int64_t rank = 0; rank < plan_.gpus; ++rank) {
      const RankPlace& at = place(rank);
      const std::int64_t data = at.dp * plan_.parallel.cp + at.cp;
      switch (which) {
        case CommGroup::kWorld:
          groups[{}][rank] = rank;
          break;
        case CommGroup::kShard:
          groups[{at.tp, at.pp, data / shard_}][data] = rank;
          break;
        case CommGroup::kReplicate:
          groups[{at.tp, at.pp, data % shard_}][data] = rank;
          break;
        case CommGroup::kSecondShard:
          groups[{rank}][0] = rank;
          break;
        case CommGroup::kTensor:
          groups[{at.cp, at.dp, at.pp}][at.tp] = rank;
          break;
        case CommGroup::kContext:
          groups[{at.tp, at.dp, at.pp}][at.cp] = rank;
          break;
        case CommGroup::kData:
          groups[{at.tp, at.pp}][data] = rank;
          break;
        case CommGroup::kPipeline:
          groups[{at.tp, at.cp, at.dp}][at.pp] = rank;
          break;
        case CommGroup::kExpert:
          groups[{at.etp, at.edp, at.pp}][at.ep] = rank;
          break;
        case CommGroup::kExpertData:
          groups[{at.etp, at.ep, at.pp}][at.edp] = rank;
          break;
      }
    }
    std::vector<Ranks> result;
    for (const auto& [key, members] : groups) {
      Ranks& group = result.emplace_back();
      for (const auto& [index, rank] : members) group.push_back(rank);
    }
    return result;
  }

 private:
  Plan plan_;
  std::int64_t shard_;
  std::vector<RankPlace> places_;
};

std::string words_of(const Plan& plan, std::int64_t shard) {
  const Parallelism& p = plan.parallel;
  std::string text = p.rank_order;
  for (const std::int64_t n : {plan.gpus, p.tp, p.cp, p.pp, p.etp, p.ep, shard}) {
    text += ' ' + std::to_string(n);
  }
  return text;
}

void expect_groups(const Plan& plan, std::int64_t shard) {
  SCOPED_TRACE(words_of(plan, shard));
  const RankMesh mesh(plan, shard);
  ASSERT_EQ(mesh.tp * mesh.cp * mesh.dp * mesh.pp, plan.gpus);
  ASSERT_EQ(mesh.etp * mesh.ep * mesh.edp * mesh.pp, plan.gpus);
  const Counted counted(plan, shard);
  for (std::int64_t rank = 0; rank < plan.gpus; ++rank) {
    ASSERT_EQ(mesh.place_of(rank), counted.place(rank)) << "rank " << rank;
    ASSERT_EQ(mesh.rank_of(mesh.place_of(rank)), rank);
  }
  const bool usual = plan.parallel.rank_order == Parallelism::kUsualOrder;
  for (const CommGroup which : kAll) {
    SCOPED_TRACE("group " + std::to_string(static_cast<int>(which)));
    const RankGroup& group = mesh.group(which);
    const std::vector<Ranks> expected = counted.groups(which);
    ASSERT_EQ(group.size * std::ssize(expected), plan.gpus);
    std::set<std::int64_t> numbers;
    for (const Ranks& members : expected) {
      ASSERT_EQ(mesh.members(which, members.back()), members);
      ASSERT_EQ(mesh.members(which, members.front()), members);
      if (members.front() == 0 && group.size > 1) {
        ASSERT_EQ(group.stride, members[1]);
      }
      if (!usual) continue;
      numbers.insert(group.number_of(members.front()));
      for (const std::int64_t rank : members) {
        ASSERT_EQ(group.number_of(rank), group.number_of(members.front()));
      }
    }
    if (usual) {
      ASSERT_EQ(numbers.size(), expected.size());
    }
  }
}

TEST(RankMeshTest, PlacesAndGroupsAreThoseThatCountingFinds) {
  const std::vector<std::string> orders = all_orders();
  std::size_t turn = 0, layouts = 0;
  for (std::int64_t n = 1; n <= 64; ++n) {
    for (const std::int64_t tp : divisors(n)) {
      for (const std::int64_t cp : divisors(n / tp)) {
        for (const std::int64_t pp : divisors(n / tp / cp)) {
          Plan plan;
          plan.gpus = n;
          plan.parallel.tp = tp;
          plan.parallel.cp = cp;
          plan.parallel.pp = pp;
          const Ranks shards = divisors(n / tp / pp), expert_parallel = divisors(n / pp);
          // Small ones in every order, all of them in the usual one and another.
          const std::size_t tried = n <= 8 ? orders.size() : 1;
          for (std::size_t i = 0; i <= tried; ++i, ++turn) {
            plan.parallel.rank_order =
                i == 0 ? Parallelism::kUsualOrder : orders[turn % orders.size()];
            plan.parallel.ep = expert_parallel[turn % expert_parallel.size()];
            const Ranks expert_tensor = divisors(n / pp / plan.parallel.ep);
            plan.parallel.etp = expert_tensor[turn / 3 % expert_tensor.size()];
            ASSERT_NO_FATAL_FAILURE(expect_groups(plan, shards[turn % shards.size()]));
            ++layouts;
          }
        }
      }
    }
  }
  EXPECT_GT(layouts, 3000u);
}

TEST(RankMeshTest, ASecondShardIsARunOfTheFirst) {
  Plan plan;
  plan.gpus = 16;
  const RankMesh mesh(plan, 8, 4);
  EXPECT_EQ(mesh.members(CommGroup::kShard, 13), (Ranks{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(mesh.members(CommGroup::kSecondShard, 13), (Ranks{12, 13, 14, 15}));
  EXPECT_EQ(mesh.members(CommGroup::kReplicate, 13), (Ranks{5, 13}));
}

// Where a stage's ranks lie apart, a group of experts does, too: no distance describes it.
TEST(RankMeshTest, ExpertsOfAStageWhoseRanksLieApart) {
  Plan plan;
  plan.gpus = 12;
  plan.parallel.tp = 3;
  plan.parallel.pp = 2;
  plan.parallel.ep = 2;
  plan.parallel.rank_order = "tp-cp-ep-pp-dp";
  const RankMesh mesh(plan, 2);
  EXPECT_EQ(mesh.members(CommGroup::kExpert, 0), (Ranks{0, 1}));
  EXPECT_EQ(mesh.members(CommGroup::kExpert, 2), (Ranks{2, 6}));
}

}  // namespace

}  // namespace shardwright
