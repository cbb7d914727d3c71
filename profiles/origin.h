// SPDX-License-Identifier: Apache-2.0
// Where the values of a profile come from, kept beside them by path.
#pragma once

#include <map>
#include <string>

namespace shardwright::profiles {

/// All but `source` may be empty.
struct Origin {
  std::string source;
  std::string confidence;  // high, medium, low, inferred or uncertain
  std::string date;        // ISO: 2025, 2025-06 or 2025-06-30
};
using Origins = std::map<std::string, Origin, std::less<>>;

}  // namespace shardwright::profiles
