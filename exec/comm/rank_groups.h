// SPDX-License-Identifier: Apache-2.0
// Which communicators a rank of a plan's mesh has, whatever connects them.
#pragma once

#include <algorithm>
#include <vector>

#include "exec/communicator.h"
#include "sim/core/layout.h"

namespace shardwright::exec {

/// In the order in which every rank makes them.
inline constexpr CommGroup kRankGroups[] = {CommGroup::kWorld, CommGroup::kShard,
                                            CommGroup::kReplicate, CommGroup::kTensor,
                                            CommGroup::kPipeline};

/// Of data parallelism alone. Throws Error when `shard_ranks` does not divide `ranks`.
RankMesh data_parallel_mesh(std::int64_t ranks, std::int64_t shard_ranks);

/// The groups of `rank`: make(kind, members, own place among them) gives a communicator.
/// `on_world` may be empty.
template <class Make>
RankGroups make_groups(const RankMesh& mesh, std::int64_t rank, const OnWorld& on_world,
                       const Make& make) {
  RankGroups groups;
  for (const CommGroup kind : kRankGroups) {
    const bool is_of_model = kind == CommGroup::kTensor || kind == CommGroup::kPipeline;
    if (is_of_model && mesh.group(kind).size == 1) continue;
    const std::vector<std::int64_t> members = mesh.members(kind, rank);
    const auto own = std::find(members.begin(), members.end(), rank) - members.begin();
    groups.of(kind) = make(kind, members, static_cast<int>(own));
    if (kind == CommGroup::kWorld && on_world) on_world(*groups.world);
  }
  return groups;
}

}  // namespace shardwright::exec
