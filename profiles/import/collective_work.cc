// SPDX-License-Identifier: Apache-2.0
#include "profiles/import/collective_work.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/core/base/json_file.h"
#include "sim/core/units.h"

namespace shardwright::profiles {

std::optional<OpKind> collective_of(std::string_view name) {
  if (name.starts_with("nccl:")) name.remove_prefix(5);
  std::string plain;
  for (const char c : name) {
    if (c != '_') plain += c;
  }
  const auto begins = [&](std::string_view with) { return plain.starts_with(with); };
  if (begins("allgather")) return OpKind::kAllGather;
  if (begins("reducescatter")) return OpKind::kReduceScatter;
  if (begins("allreduce")) return OpKind::kAllReduce;
  if (begins("broadcast")) return OpKind::kBroadcast;
  return std::nullopt;
}

std::vector<std::int64_t> ranks_of(std::string_view text) {
  const auto list = parse_json(text, false);
  std::vector<std::int64_t> ranks;
  if (!list.is_array()) return ranks;
  for (const auto& rank : list) {
    if (!rank.is_number_integer()) return {};
    ranks.push_back(rank.get<std::int64_t>());
  }
  return ranks;
}

std::int64_t nodes_of(const std::vector<std::int64_t>& ranks, std::int64_t group_size,
                      std::int64_t gpus_per_node) {
  if (gpus_per_node <= 0) return 1;
  if (ranks.empty()) return std::max<std::int64_t>(1, ceil_div(group_size, gpus_per_node));
  std::set<std::int64_t> nodes;
  for (const std::int64_t rank : ranks) nodes.insert(rank / gpus_per_node);
  return static_cast<std::int64_t>(nodes.size());
}

}  // namespace shardwright::profiles
