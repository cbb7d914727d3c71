// SPDX-License-Identifier: Apache-2.0
// Which ranks take part in a collective.
//
// Groups of one kind divide the ranks of the world evenly: `size` members, `stride` apart. Ranks
// are numbered with tensor parallelism fastest, then context, expert, data and pipeline, so that
// each dimension is such a group; sim/core/rank_mesh.h finds them for a plan, in other orders too.
// A schedule has a table of them by name.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace shardwright {

enum class CommGroup : std::uint8_t {
  kShard,        // ranks that hold one copy of the parameters between them
  kReplicate,    // equal shards of different shard groups
  kSecondShard,  // ranks of a node that hold one more copy between them
  kWorld,
  // of the model
  kTensor,
  kContext,
  kExpert,      // ranks that share the experts of a layer
  kExpertData,  // ranks that hold the same experts
  kData,  // ranks that hold the same part of the dense model, context parallel ones among them
  kPipeline
};
inline constexpr int kCommGroups = 10;

/// Those that divide the replicas are told as one.
constexpr CommGroup told_as(CommGroup group) {
  return group <= CommGroup::kWorld ? CommGroup::kData : group;
}

/// The word of a group, those that divide the replicas being one: "tensor", "context", "expert",
/// "pipeline", "data".
std::string_view name_of(CommGroup group);

struct RankGroup {
  std::int64_t size = 1;
  std::int64_t stride = 1;

  /// Members in one node of `ranks_per_node` ranks.
  std::int64_t members_per_node(std::int64_t ranks_per_node) const {
    return std::clamp<std::int64_t>(ranks_per_node / stride, 1, size);
  }
  /// Number of the group that a rank belongs to, among those of its kind.
  std::int64_t number_of(std::int64_t rank) const {
    return rank / (size * stride) * stride + rank % stride;
  }
  bool operator==(const RankGroup&) const = default;
};

}  // namespace shardwright
