// SPDX-License-Identifier: Apache-2.0
// The strategies, and what everybody outside sim/strategies may know about one: its name, what it
// divides, whose software it stands for. Everything that tells strategies apart (checks of plans,
// the tuner's space, exports, words) asks here; how a step of it goes stands in its file alone.
//
// The list is strategies.def; CONTRIBUTING.md says how to add to it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/base/words.h"

namespace shardwright {

enum class Strategy : std::uint8_t {
#define STRATEGY(id, ...) id,
#include "sim/core/strategies.def"
#undef STRATEGY
};
inline constexpr int kStrategyCount = 0
#define STRATEGY(...) +1
#include "sim/core/strategies.def"
#undef STRATEGY
    ;

/// What is divided over the ranks of a shard group; each level divides what those before it do.
enum class Sharded : std::uint8_t { kNothing, kOptimizer, kGradients, kParameters };

/// Whose settings say exactly this.
enum class Software : std::uint8_t { kNone, kDdp, kDeepSpeed, kFsdp1, kFsdp2, kYafsdp, kMegatron };
SHARDWRIGHT_WORDS(Software, kMegatron, "one GPU", "DDP", "DeepSpeed", "FSDP1", "FSDP2", "YaFSDP",
                  "Megatron");

/// On which stacks gathered units take turns in buffers whose number the plan chooses.
enum class Buffers : std::uint8_t { kNever, kNative, kAlways };

struct StrategyInfo {
  Strategy id = Strategy::kSingle;
  std::string_view name;
  Sharded shards = Sharded::kNothing;
  Software software = Software::kNone;
  /// Parameters are released after forward and gathered again for backward.
  bool reshards = false;
  /// Shards within groups of ranks (Plan::shard_group) and replicates across them.
  bool hybrid = false;
  /// Sums gradients in flat buckets; takes a Plan::shard_group of fewer than all replicas, too.
  bool bucketed = false;
  bool one_rank = false;
  /// Keeps from forward to backward a second shard, of the ranks of a node.
  bool second_shard = false;
  /// The native stack has a schedule of it, so the executor runs it.
  bool native = true;
  /// The strategy whose schedule the native stack runs for this one; itself where there is none.
  std::optional<Strategy> native_twin = std::nullopt;
  Buffers buffers = Buffers::kNever;
  /// `tune` and `size` consider it unasked.
  bool tuned = true;

  bool replicates() const { return shards == Sharded::kNothing; }
  /// DeepSpeed's number for what is divided between forward and backward.
  int zero_stage() const;
};

const StrategyInfo& info_of(Strategy strategy);
std::string_view name_of(Strategy strategy);
std::optional<Strategy> strategy_from(std::string_view name);
/// In the order of the enum.
std::vector<Strategy> all_strategies();
std::vector<std::string> strategy_names();
/// What is divided, in words; `group` are the ranks it is divided over ("all GPUs").
std::string sharding_words(Strategy strategy, std::string_view group);

}  // namespace shardwright
