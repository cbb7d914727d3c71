// SPDX-License-Identifier: Apache-2.0
#include "sim/core/layout.h"

#include <algorithm>
#include <numeric>

#include "sim/core/rack.h"

namespace shardwright {
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

}  // namespace shardwright
