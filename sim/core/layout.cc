// SPDX-License-Identifier: Apache-2.0
#include "sim/core/layout.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "sim/core/base/check.h"
#include "sim/core/plan.h"

namespace shardwright {

RankMesh::RankMesh(const Plan& plan, std::int64_t shard, std::int64_t second_shard) {
  const Parallelism& p = plan.parallel;
  ranks = plan.gpus;
  tp = p.tp;
  cp = p.cp;
  pp = p.pp;
  dp = ranks / p.replica();
  etp = p.etp;
  ep = p.ep;
  edp = std::max<std::int64_t>(1, ranks / pp / (etp * ep));
  std::int64_t in_world = 1, in_stage = 1;
  for (std::string_view order = p.rank_order; !order.empty();) {
    const std::size_t end = std::min(order.find('-'), order.size());
    const std::string_view word = order.substr(0, end);
    order.remove_prefix(std::min(end + 1, order.size()));
    const auto place = [&](std::int64_t Strides::*at, std::int64_t size) {
      world_.*at = in_world;
      stage_.*at = in_stage;
      in_world *= size;
      if (at != &Strides::pp) in_stage *= size;
    };
    if (word == "tp") place(&Strides::tp, tp);
    if (word == "cp") place(&Strides::cp, cp);
    if (word == "dp") place(&Strides::dp, dp);
    if (word == "pp") place(&Strides::pp, pp);
  }
  const std::int64_t replicas = dp * cp;
  const std::array<std::int64_t, kCommGroups> sizes = {
      shard, replicas / shard, second_shard, ranks, tp, cp, ep, edp, replicas, pp};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    groups_[i].size = sizes[i];
    if (sizes[i] > 1) groups_[i].stride = member(static_cast<CommGroup>(i), {}, 1);
  }
}

RankPlace RankMesh::place_of(std::int64_t rank) const {
  RankPlace place;
  place.tp = rank / world_.tp % tp;
  place.cp = rank / world_.cp % cp;
  place.dp = rank / world_.dp % dp;
  place.pp = rank / world_.pp % pp;
  const std::int64_t in_stage = place.tp * stage_.tp + place.cp * stage_.cp + place.dp * stage_.dp;
  place.etp = in_stage % etp;
  place.ep = in_stage / etp % ep;
  place.edp = in_stage / (etp * ep);
  return place;
}

std::int64_t RankMesh::rank_of(const RankPlace& place) const {
  return place.tp * world_.tp + place.cp * world_.cp + place.dp * world_.dp + place.pp * world_.pp;
}

/// The rank that holds the same part of the dense model and is number `index` of those.
std::int64_t RankMesh::data_rank(RankPlace place, std::int64_t index) const {
  place.cp = index % cp;
  place.dp = index / cp;
  return rank_of(place);
}

/// Of the experts' dimensions and the stage.
std::int64_t RankMesh::expert_rank(const RankPlace& place) const {
  const std::int64_t in_stage = place.etp + etp * (place.ep + ep * place.edp);
  RankPlace dense;
  dense.tp = in_stage / stage_.tp % tp;
  dense.cp = in_stage / stage_.cp % cp;
  dense.dp = in_stage / stage_.dp % dp;
  dense.pp = place.pp;
  return rank_of(dense);
}

std::int64_t RankMesh::member(CommGroup which, const RankPlace& of, std::int64_t index) const {
  RankPlace place = of;
  const std::int64_t data = of.cp + cp * of.dp;
  const auto run_of = [&](CommGroup kind) {
    const std::int64_t size = group(kind).size;
    return data_rank(of, data / size * size + index);
  };
  switch (which) {
    case CommGroup::kWorld:
      return index;
    case CommGroup::kShard:
    case CommGroup::kSecondShard:
      return run_of(which);
    case CommGroup::kReplicate: {
      const std::int64_t shard = group(CommGroup::kShard).size;
      return data_rank(of, data % shard + index * shard);
    }
    case CommGroup::kData:
      return data_rank(of, index);
    case CommGroup::kTensor:
      place.tp = index;
      return rank_of(place);
    case CommGroup::kContext:
      place.cp = index;
      return rank_of(place);
    case CommGroup::kPipeline:
      place.pp = index;
      return rank_of(place);
    case CommGroup::kExpert:
      place.ep = index;
      return expert_rank(place);
    case CommGroup::kExpertData:
      place.edp = index;
      return expert_rank(place);
  }
  return rank_of(of);
}

std::vector<std::int64_t> RankMesh::members(CommGroup which, std::int64_t rank) const {
  SHARDWRIGHT_CHECK(rank >= 0 && rank < ranks, "rank {} of {}", rank, ranks);
  const RankPlace place = place_of(rank);
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < group(which).size; ++i) result.push_back(member(which, place, i));
  return result;
}

namespace {

std::int64_t domain_of(const Plan& plan, const Cluster& cluster) {
  const std::int64_t most = nvlink_gpus(cluster);
  // No group that talks in every layer is cut by the end of a rack.
  const Parallelism& p = plan.parallel;
  if (is_rack(most)) return gpus_of_each_rack(plan.gpus, most, std::lcm(p.tp, p.ep * p.etp));
  std::int64_t domain = std::min(most, plan.gpus);
  while (plan.gpus % domain != 0) --domain;
  return domain;
}

/// Ranks over which the data parallel ones divide parameters, gradients or optimizer state; of
/// hybrid sharding, unless the plan says another number, those of a node.
std::int64_t shard_of(const Plan& plan, const Cluster& cluster) {
  const StrategyInfo& strategy = info_of(plan.strategy);
  if (strategy.replicates()) return 1;
  if (plan.shard_group > 0) return plan.shard_group;
  const std::int64_t replicas = plan.gpus / (plan.parallel.tp * plan.parallel.pp);
  if (!strategy.hybrid) return replicas;
  return std::gcd(replicas, std::max<std::int64_t>(1, cluster.gpus_per_node / plan.parallel.tp));
}

}  // namespace

CollectiveGroup Layout::collective_group(CommGroup which) const {
  CollectiveGroup result;
  result.ranks = group(which).size;
  result.ranks_per_node = members_in_domain(which);
  result.groups_per_node = std::max<std::int64_t>(1, domain / result.ranks_per_node);
  return result;
}

CollectiveGroup Layout::transfer_group(std::int64_t stage) const {
  const std::int64_t stride = group(CommGroup::kPipeline).stride;
  const std::int64_t from = stage * stride;
  const bool leaves = pp > 1 && from / domain != (from + stride) / domain;
  CollectiveGroup result;
  result.ranks = 2;
  result.ranks_per_node = leaves ? 1 : 2;
  // Every rank of the domain sends at that time, each over its part of the NICs.
  result.groups_per_node = std::max<std::int64_t>(1, domain / result.ranks_per_node);
  return result;
}

Layout layout_of(const Plan& plan, const Cluster& cluster) {
  const std::int64_t shard_ranks = shard_of(plan, cluster);
  const std::int64_t in_node = std::max<std::int64_t>(1, cluster.gpus_per_node / plan.parallel.tp);
  const bool second = info_of(plan.strategy).second_shard;
  Layout layout{RankMesh(plan, shard_ranks, second ? std::min(in_node, shard_ranks) : 1)};
  layout.domain = domain_of(plan, cluster);
  const auto set = [&](CommGroup which, std::int64_t in_domain) {
    layout.in_domain_[static_cast<std::size_t>(which)] = std::max<std::int64_t>(1, in_domain);
  };
  for (const CommGroup which :
       {CommGroup::kWorld, CommGroup::kTensor, CommGroup::kContext, CommGroup::kPipeline}) {
    set(which, layout.group(which).members_per_node(layout.domain));
  }
  // Context and data ranks together are not evenly spaced in every order: count those at home.
  std::int64_t at_home = 0;
  for (std::int64_t c = 0; c < layout.cp; ++c) {
    const std::int64_t first = layout.rank_of({.cp = c});
    if (first >= layout.domain) break;
    const std::int64_t stride = layout.dp > 1 ? layout.rank_of({.dp = 1}) : layout.ranks;
    at_home += std::min(layout.dp, (layout.domain - first + stride - 1) / stride);
  }
  const std::int64_t shard = layout.group(CommGroup::kShard).size;
  set(CommGroup::kData, at_home);
  set(CommGroup::kShard, std::min(at_home, shard));
  set(CommGroup::kReplicate, at_home / shard);
  // With pipeline ranks inside the domain the experts of a stage still are neighbours.
  const std::int64_t stride = layout.group(CommGroup::kPipeline).stride;
  const std::int64_t first = layout.pp > 1 && stride < layout.ranks / layout.pp
                                 ? std::min(stride, layout.domain)
                                 : layout.domain;
  set(CommGroup::kExpert, std::min(layout.ep, first / layout.etp));
  set(CommGroup::kExpertData, std::min(layout.edp, first / (layout.ep * layout.etp)));
  return layout;
}

std::int64_t rack_gpus(const Plan& plan, const Cluster& cluster) {
  if (!is_rack(nvlink_gpus(cluster)) || !cluster.nvlink) return 0;
  return layout_of(plan, cluster).domain;
}

namespace {

constexpr std::int64_t kMostGpusOfABoard = 16;

/// The most whole units, at least half a rack, that divide all GPUs; 0: there is no such number.
std::int64_t equal_parts(std::int64_t gpus, std::int64_t rack, std::int64_t unit) {
  for (std::int64_t part = rack / unit * unit; 2 * part >= rack && part > 0; part -= unit) {
    if (gpus % part == 0) return part;
  }
  return 0;
}

std::int64_t whole_trays(std::int64_t gpus, std::int64_t racks) {
  const std::int64_t each = (gpus - 1) / racks + 1;
  return ((each - 1) / kGpusPerTray + 1) * kGpusPerTray;
}

}  // namespace

bool is_rack(std::int64_t nvlink_gpus) {
  return nvlink_gpus > kMostGpusOfABoard;
}

std::int64_t nvlink_gpus(const Cluster& cluster) {
  return std::max(cluster.nvlink_domain, cluster.gpus_per_node);
}

std::int64_t gpus_of_each_rack(std::int64_t gpus, std::int64_t rack, std::int64_t unit) {
  if (gpus <= rack) return gpus;
  const std::int64_t whole = std::lcm(unit, kGpusPerTray);
  for (const std::int64_t step : {whole, kGpusPerTray}) {
    if (const std::int64_t part = equal_parts(gpus, rack, step); part > 0) return part;
  }
  return std::min(rack, whole_trays(gpus, (gpus - 1) / rack + 1));
}

Cluster filled(Cluster cluster, std::int64_t gpus) {
  const std::int64_t rack = cluster.gpus_per_node;
  if (is_rack(rack) && cluster.gpu.is_processor())  // whose ranks are no boards
    cluster.gpus_per_node = std::min(gpus, rack);
  if (!is_rack(rack) || !cluster.nvlink || gpus <= rack) return cluster;
  const std::int64_t part = gpus_of_each_rack(gpus, rack);
  cluster.nvlink_domain = std::max(cluster.nvlink_domain, rack);
  cluster.nics_per_node = cluster.nics_per_node * part / rack;
  cluster.gpus_per_node = part;
  return cluster;
}

}  // namespace shardwright
