// SPDX-License-Identifier: Apache-2.0
// A file of prices, which takes the place of what the cluster files say: "shardwright.prices/1.0",
// written by `prices import`.
//
//   {"schema": "shardwright.prices/1.0", "date": "2026-11-22",
//    "clusters": {"p5": {"on-demand": {"usd_per_gpu_hour": 6.88, "range": [6.88, 9.49],
//                                      "source": "median of 4 regions of aws"}, "spot": {..}}},
//    "gpus": {"h100-80g": {..}}}
//
// Members that a reader does not need (offers, left_out) are for people and may be absent.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "profiles/prices/price.h"

namespace shardwright::profiles {

struct PriceFile {
  std::map<std::string, PriceList, std::less<>> clusters, gpus;

  /// Of a cluster by its name, else of its GPU; none where the file has no such price.
  std::optional<Price> find(const std::string& cluster, const std::string& gpu,
                            PriceKind kind) const;
};

/// Throws Error naming file, key, value and what is accepted.
PriceFile load_price_file(const std::filesystem::path& path);

}  // namespace shardwright::profiles
