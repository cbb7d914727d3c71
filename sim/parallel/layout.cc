// SPDX-License-Identifier: Apache-2.0
#include "sim/parallel/layout.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "sim/core/rack.h"

namespace shardwright::sim {
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

struct Strides {
  std::int64_t tp = 1, cp = 1, dp = 1, pp = 1;
};

Strides strides_of(const Layout& layout, std::string_view order) {
  Strides strides;
  std::int64_t stride = 1;
  while (!order.empty()) {
    const std::size_t end = std::min(order.find('-'), order.size());
    const std::string_view word = order.substr(0, end);
    order.remove_prefix(std::min(end + 1, order.size()));
    const auto place = [&](std::int64_t& at, std::int64_t size) {
      at = stride;
      stride *= size;
    };
    if (word == "tp") place(strides.tp, layout.tp);
    if (word == "cp") place(strides.cp, layout.cp);
    if (word == "dp") place(strides.dp, layout.dp);
    if (word == "pp") place(strides.pp, layout.pp);
  }
  return strides;
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
  const std::int64_t from = stage * pipeline_stride;
  const bool leaves = pp > 1 && from / domain != (from + pipeline_stride) / domain;
  CollectiveGroup result;
  result.ranks = 2;
  result.ranks_per_node = leaves ? 1 : 2;
  // Every rank of the domain sends at that time, each over its part of the NICs.
  result.groups_per_node = std::max<std::int64_t>(1, domain / result.ranks_per_node);
  return result;
}

Layout layout_of(const Plan& plan, const Cluster& cluster) {
  const Parallelism& p = plan.parallel;
  Layout layout;
  layout.ranks = plan.gpus;
  layout.tp = p.tp;
  layout.cp = p.cp;
  layout.pp = p.pp;
  layout.ep = p.ep;
  layout.etp = p.etp;
  layout.dp = plan.gpus / p.replica();
  layout.domain = domain_of(plan, cluster);
  const Strides strides = strides_of(layout, p.rank_order);
  layout.pipeline_stride = strides.pp;
  const auto set = [&](CommGroup which, std::int64_t size, std::int64_t stride,
                       std::int64_t in_domain) {
    layout.groups_[static_cast<std::size_t>(which)] = {size, stride};
    layout.in_domain_[static_cast<std::size_t>(which)] = std::max<std::int64_t>(1, in_domain);
  };
  const auto alone = [&](CommGroup which, std::int64_t size, std::int64_t stride) {
    set(which, size, stride, RankGroup{size, stride}.members_per_node(layout.domain));
  };
  alone(CommGroup::kWorld, layout.ranks, 1);
  alone(CommGroup::kTensor, layout.tp, strides.tp);
  alone(CommGroup::kContext, layout.cp, strides.cp);
  alone(CommGroup::kPipeline, layout.pp, strides.pp);
  // Context and data ranks together are not evenly spaced in every order: count those at home.
  std::int64_t at_home = 0;
  for (std::int64_t c = 0; c < layout.cp && c * strides.cp < layout.domain; ++c) {
    const std::int64_t room = layout.domain - c * strides.cp;
    at_home += std::min(layout.dp, (room + strides.dp - 1) / strides.dp);
  }
  const std::int64_t replicas = layout.dp * layout.cp;
  const std::int64_t stride = layout.cp > 1 ? strides.cp : strides.dp;
  set(CommGroup::kData, replicas, stride, at_home);
  std::int64_t shard = plan.shard_group > 0 ? plan.shard_group : replicas;
  if (info_of(plan.strategy).replicates()) shard = 1;
  set(CommGroup::kShard, shard, stride, std::min(at_home, shard));
  set(CommGroup::kReplicate, replicas / shard, stride * shard, at_home / shard);
  const std::int64_t stage = layout.ranks / layout.pp;
  const std::int64_t experts = layout.ep * layout.etp;
  // With pipeline ranks inside the domain the experts of a stage still are neighbours.
  const std::int64_t first =
      strides.pp < stage ? std::min(strides.pp, layout.domain) : layout.domain;
  set(CommGroup::kExpert, layout.ep, layout.etp,
      std::min(layout.ep, std::max<std::int64_t>(1, first / layout.etp)));
  set(CommGroup::kExpertData, std::max<std::int64_t>(1, stage / experts), experts,
      std::min(stage / experts, first / experts));
  return layout;
}

std::int64_t rack_gpus(const Plan& plan, const profiles::Profile& profile) {
  const Cluster& cluster = profile.cluster;
  if (!is_rack(nvlink_gpus(cluster)) || !cluster.nvlink) return 0;
  const bool divided = profile.stack.parallel.always || !beyond_data_parallel(plan).empty();
  return divided ? layout_of(plan, cluster).domain : std::min(plan.gpus, cluster.gpus_per_node);
}

}  // namespace shardwright::sim
