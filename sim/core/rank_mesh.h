// SPDX-License-Identifier: Apache-2.0
// Where a rank stands in the mesh of a plan, and which ranks form its groups: the one place that
// simulator, executor and exports take groups from. Pure arithmetic; which of the ranks share a
// node or a NIC is sim/core/layout.h's.
//
// Ranks are numbered with the dimensions of Parallelism::rank_order, the fastest first. Ranks that
// hold the same part of the dense model are counted with context parallel fastest, then data
// parallel; runs of neighbours in that count shard it. Experts are placed on the same ranks a
// second time (parallel folding, arXiv 2504.14960): over the ranks of a stage, in their order,
// expert tensor parallel fastest, then expert parallel, then the data parallelism of experts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/core/rank_group.h"

namespace shardwright {

struct Plan;

struct RankPlace {
  std::int64_t tp = 0, cp = 0, dp = 0, pp = 0;
  std::int64_t etp = 0, ep = 0, edp = 0;  // of experts
  bool operator==(const RankPlace&) const = default;
};

class RankMesh {
 public:
  RankMesh() = default;
  /// `shard` ranks of each kData group hold one copy between them, `second_shard` of those one
  /// more. The plan must have passed check_parallelism.
  explicit RankMesh(const Plan& plan, std::int64_t shard, std::int64_t second_shard = 1);

  std::int64_t ranks = 1, tp = 1, cp = 1, dp = 1, pp = 1;
  std::int64_t etp = 1, ep = 1, edp = 1;

  /// Size, and distance from a group's first member to its second. Groups of one kind are evenly
  /// spaced in the usual order of ranks; in every order members() says who they are.
  const RankGroup& group(CommGroup which) const { return groups_[static_cast<std::size_t>(which)]; }

  RankPlace place_of(std::int64_t rank) const;
  /// Of the dense dimensions.
  std::int64_t rank_of(const RankPlace& place) const;
  /// The group of `rank`, by the rank in it.
  std::vector<std::int64_t> members(CommGroup which, std::int64_t rank) const;

 private:
  /// Distances of neighbours: in the world, and among the ranks of a stage.
  struct Strides {
    std::int64_t tp = 1, cp = 1, dp = 1, pp = 1;
  };
  std::int64_t member(CommGroup which, const RankPlace& of, std::int64_t index) const;
  std::int64_t data_rank(RankPlace place, std::int64_t index) const;
  std::int64_t expert_rank(const RankPlace& place) const;

  Strides world_, stage_;
  std::array<RankGroup, kCommGroups> groups_{};
};

}  // namespace shardwright
