// SPDX-License-Identifier: Apache-2.0
// What a recorded collective of PyTorch is to the cost model: which operation, how many bytes,
// between how many ranks on how many nodes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/op.h"

namespace shardwright::profiles {

/// Of "_allgather_base", "nccl:all_reduce", "reduce_scatter_tensor_coalesced"; none for those that
/// the simulator has no cost for (all_to_all, send, recv, gather, scatter).
std::optional<OpKind> collective_of(std::string_view name);

/// The ranks of "[0, 1, 2]"; empty when the text is no list or was cut short ("[0, 1, ..., 63]").
std::vector<std::int64_t> ranks_of(std::string_view text);

/// Nodes that a group spans: counted from its ranks where all are listed, else as for consecutive
/// ranks. At least 1.
std::int64_t nodes_of(const std::vector<std::int64_t>& ranks, std::int64_t group_size,
                      std::int64_t gpus_per_node);

}  // namespace shardwright::profiles
