// SPDX-License-Identifier: Apache-2.0
// Where the groups of a plan's rank mesh lie on the machine: who talks to
// whom over NVLink, who over NICs, and who shares those.
//
// A domain is what NVLink joins: a node, or a rack of trays. Groups of one kind run the same
// collective at the same time, so those of a node share its NICs: a group with g members in a node
// has g of its GPUs' parts of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/core/cluster.h"
#include "sim/core/collective.h"
#include "sim/core/plan.h"

namespace shardwright {

// Where a rank stands in the mesh of a plan, and which ranks form its groups: the one place that
// simulator, executor and exports take groups from. Pure arithmetic; which of the ranks share a
// node or a NIC is the layout's.
//
// Ranks are numbered with the dimensions of Parallelism::rank_order, the fastest first. Ranks that
// hold the same part of the dense model are counted with context parallel fastest, then data
// parallel; runs of neighbours in that count shard it. Experts are placed on the same ranks a
// second time (parallel folding, arXiv 2504.14960): over the ranks of a stage, in their order,
// expert tensor parallel fastest, then expert parallel, then the data parallelism of experts.

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

struct Layout : RankMesh {
  std::int64_t domain = 1;  // ranks that NVLink joins, of those that are used

  /// Members of such a group in one domain.
  std::int64_t members_in_domain(CommGroup which) const {
    return in_domain_[static_cast<std::size_t>(which)];
  }
  CollectiveGroup collective_group(CommGroup which) const;
  /// The group of two that passes activations from stage `stage` to the next.
  CollectiveGroup transfer_group(std::int64_t stage) const;

  std::array<std::int64_t, kCommGroups> in_domain_{};
};

/// `plan` must have passed check_parallelism.
Layout layout_of(const Plan& plan, const Cluster& cluster);

/// GPUs of each rack that NVLink joins which the plan takes; 0 where a domain
/// of NVLink is one board.
std::int64_t rack_gpus(const Plan& plan, const Cluster& cluster);

// Racks that NVLink joins (NVL72), and how a job fills them.
//
// A scheduler hands out compute trays of four GPUs (GB200 and GB300 NVL72: 18 trays a rack), and a
// job on several racks takes as many GPUs of each, so that no group of ranks is cut by the end of a
// rack: 1,024 GPUs are 16 racks with 64 of 72 GPUs each, as published runs have it (NVIDIA
// dgxc-benchmarking, MLPerf Training 5.1). Where no equal number of whole trays between half a rack
// and a rack divides the GPUs, racks are filled as evenly as trays allow and the last one holds the
// rest.

inline constexpr std::int64_t kGpusPerTray = 4;

/// Whether as many GPUs as NVLink joins are more than one board carries.
bool is_rack(std::int64_t nvlink_gpus);

/// GPUs that NVLink joins: a node's, or a rack's.
std::int64_t nvlink_gpus(const Cluster& cluster);

/// GPUs of each rack of `rack` GPUs that a job of `gpus` takes. Groups of `unit` neighbours are
/// kept whole where that is possible.
std::int64_t gpus_of_each_rack(std::int64_t gpus, std::int64_t rack, std::int64_t unit = 1);

/// The cluster as a job of `gpus` finds it: racks that it fills in part are nodes of that part.
Cluster filled(Cluster cluster, std::int64_t gpus);

}  // namespace shardwright
