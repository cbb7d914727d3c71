// SPDX-License-Identifier: Apache-2.0
#include "sim/core/rank_mesh.h"

#include <algorithm>
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

}  // namespace shardwright
