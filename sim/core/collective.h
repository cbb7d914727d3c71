// SPDX-License-Identifier: Apache-2.0
// What a group of ranks does together inside a pass of a unit, and how the compute stream and it
// overlap.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "sim/core/base/words.h"
#include "sim/core/parallelism.h"

namespace shardwright {

// Which ranks take part in a collective.
//
// Groups of one kind divide the ranks of the world evenly: `size` members, `stride` apart. Ranks
// are numbered with tensor parallelism fastest, then context, expert, data and pipeline, so that
// each dimension is such a group; sim/core/layout.h finds them for a plan, in other orders too.
// A schedule has a table of them by name.

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

enum class Collective : std::uint8_t { kAllGather, kReduceScatter, kAllReduce, kBroadcast };
SHARDWRIGHT_WORDS(Collective, kBroadcast, "all_gather", "reduce_scatter", "all_reduce",
                  "broadcast");

/// How a collective and the compute stream meet.
enum class Overlap : std::uint8_t {
  kNone,             // the compute stream waits for it at once
  kFollowing,        // overlapped with the operations that follow, until one `joins`
  kInside,           // in pieces inside the GEMM that stands with it (userbuffers, async)
  kOtherMicroBatch,  // with operations of another micro-batch, which the schedule puts there
};

/// What a group does together: NCCL's collective `kind`, every rank sends to every other one, each
/// to its neighbour in a ring, or each sends rows to the ranks of their experts.
enum class Pattern : std::uint8_t { kCollective, kExchange, kRingStep, kTokens };

/// Which ranks take part. A node here is an NVLink domain.
struct CollectiveGroup {
  std::int64_t ranks = 1;
  std::int64_t ranks_per_node = 1;  ///< of this group; ranks above one node fill further ones
  /// Groups like this one that run at the same time on each node and share its NICs; a replicate
  /// group of hybrid sharding has one rank per node and as many groups as GPUs in a node.
  std::int64_t groups_per_node = 1;
  /// Ranks share one device, and collectives are copies in its memory
  /// (exec/comm/local_communicator.h): by what sharing stretches a rank's copies, at least 1. 0:
  /// each has a device of its own.
  double copies_take_turns = 0;
};

/// Tokens on their way to experts.
struct DispatchShape {
  double tokens = 0;       ///< of a rank
  double token_bytes = 0;  ///< of one row
  std::int64_t experts = 1, per_token = 1;
  std::int64_t ranks = 1;            ///< that share the experts
  std::int64_t ranks_in_domain = 1;  ///< of them, that NVLink joins
  /// Domains that a token may reach (node-limited routing); 0: all.
  std::int64_t domains_per_token = 0;
  double busiest = 1;  ///< rows that the rank with most of them gets, over the mean
};

/// Expected number of distinct places, out of n, that hold a token's k experts out of E, with
/// balanced routing: n (1 - C(E - E/n, k) / C(E, k)). `places` must divide `experts`.
inline double distinct_places(std::int64_t experts, std::int64_t per_token, std::int64_t places) {
  const double here = static_cast<double>(experts) / static_cast<double>(places);
  double none = 1;  // of the experts of one place is chosen
  for (std::int64_t i = 0; i < per_token; ++i) {
    none *=
        std::max(0.0, static_cast<double>(experts - i) - here) / static_cast<double>(experts - i);
  }
  return static_cast<double>(places) * (1 - none);
}

struct CollectiveWork {
  CommGroup group = CommGroup::kTensor;
  Collective kind = Collective::kAllGather;
  Pattern pattern = Pattern::kCollective;
  Overlap overlap = Overlap::kNone;
  double bytes = 0;  // gathered or unreduced size; of the other patterns what a rank holds
  /// Of sums in pieces: each piece goes to the rank that adds it up, by the copy engines.
  bool exchanged = false;
  // Of tokens; which ranks of the group are where is the layout's.
  Dispatcher dispatcher = Dispatcher::kAllToAll;
  DispatchShape tokens{};
  int sms = 0;  // that it holds; 0: as many as its kind usually does

  /// Nothing is sent without bytes.
  explicit operator bool() const { return bytes > 0; }
};

}  // namespace shardwright
