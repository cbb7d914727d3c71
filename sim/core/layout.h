// SPDX-License-Identifier: Apache-2.0
// Where the groups of a plan's rank mesh (sim/core/rank_mesh.h) lie on the machine: who talks to
// whom over NVLink, who over NICs, and who shares those.
//
// A domain is what NVLink joins: a node, or a rack of trays. Groups of one kind run the same
// collective at the same time, so those of a node share its NICs: a group with g members in a node
// has g of its GPUs' parts of them.
#pragma once

#include <array>
#include <cstdint>

#include "sim/core/cluster.h"
#include "sim/core/collective.h"
#include "sim/core/plan.h"
#include "sim/core/rank_mesh.h"

namespace shardwright {

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

/// GPUs of each rack that NVLink joins (sim/core/rack.h) which the plan takes; 0 where a domain of
/// NVLink is one board.
std::int64_t rack_gpus(const Plan& plan, const Cluster& cluster);

}  // namespace shardwright
