// SPDX-License-Identifier: Apache-2.0
// Where the groups of a plan lie on the machine: who talks to whom over NVLink, who over NICs, and
// who shares those.
//
// Ranks are numbered with the dimensions of Plan::parallel.rank_order, the fastest first; each
// dimension is a group of ranks at equal distances. Experts are placed on the same ranks a second
// time (parallel folding, arXiv 2504.14960): expert tensor parallel fastest, then expert parallel,
// then the data parallelism of experts. A domain is what NVLink joins: a node, or a rack of trays.
// Groups of one kind run the same collective at the same time, so those of a node share its NICs:
// a group with g members in a node has g of its GPUs' parts of them.
#pragma once

#include <array>
#include <cstdint>

#include "profiles/profile.h"
#include "sim/core/cluster.h"
#include "sim/core/plan.h"
#include "sim/core/rank_group.h"
#include "sim/cost/collectives.h"

namespace shardwright::sim {

struct Layout {
  std::int64_t ranks = 1, tp = 1, cp = 1, pp = 1, dp = 1, ep = 1, etp = 1;
  std::int64_t domain = 1;           // ranks that NVLink joins, of those that are used
  std::int64_t pipeline_stride = 1;  // from a rank to its peer in the next stage

  /// kShard and kReplicate divide kData, the ranks that hold the same part of the dense model
  /// (context parallel ranks among them); kExpertData holds the same experts.
  const RankGroup& group(CommGroup which) const { return groups_[static_cast<std::size_t>(which)]; }
  /// Members of such a group in one domain.
  std::int64_t members_in_domain(CommGroup which) const {
    return in_domain_[static_cast<std::size_t>(which)];
  }
  CollectiveGroup collective_group(CommGroup which) const;
  /// The group of two that passes activations from stage `stage` to the next.
  CollectiveGroup transfer_group(std::int64_t stage) const;

  std::array<RankGroup, kCommGroups> groups_{};
  std::array<std::int64_t, kCommGroups> in_domain_{};
};

/// `plan` must have passed check_parallelism.
Layout layout_of(const Plan& plan, const Cluster& cluster);

/// GPUs of each rack that NVLink joins (sim/core/rack.h) which the plan takes; 0 where a domain of
/// NVLink is one board.
std::int64_t rack_gpus(const Plan& plan, const profiles::Profile& profile);

}  // namespace shardwright::sim
