// SPDX-License-Identifier: Apache-2.0
#include "sim/fit/held_out.h"

namespace shardwright::sim {

std::uint32_t fold_of(std::initializer_list<std::int64_t> key, std::uint32_t folds) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const std::int64_t number : key) {
    auto rest = static_cast<std::uint64_t>(number);
    for (int byte = 0; byte < 8; ++byte, rest >>= 8)
      hash = (hash ^ (rest & 0xff)) * 1099511628211ULL;
  }
  hash ^= hash >> 33;
  hash *= 0xff51afd7ed558ccdULL;
  hash ^= hash >> 33;
  return static_cast<std::uint32_t>(hash % folds);
}

}  // namespace shardwright::sim
