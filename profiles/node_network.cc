// SPDX-License-Identifier: Apache-2.0
#include "profiles/node_network.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

#include "sim/core/base/error.h"
#include "sim/core/base/parse_value.h"

namespace shardwright::profiles {

double parse_network_rate(std::string_view flag, const std::string& text) {
  // Bits are small, bytes are large letters, as networks are sold.
  static constexpr std::array<std::pair<std::string_view, double>, 8> kUnits = {{{"Tb/s", 1.25e11},
                                                                                 {"Tbps", 1.25e11},
                                                                                 {"Gb/s", 1.25e8},
                                                                                 {"Gbps", 1.25e8},
                                                                                 {"Gbit/s", 1.25e8},
                                                                                 {"TB/s", 1e12},
                                                                                 {"GB/s", 1e9},
                                                                                 {"MB/s", 1e6}}};
  for (const auto& [unit, bytes_per_s] : kUnits) {
    if (!text.ends_with(unit)) continue;
    const double rate = parse_number(flag, text.substr(0, text.size() - unit.size())) * bytes_per_s;
    if (rate >= 1e6 && rate < 1e15) return rate;
  }
  throw Error(
      fmt::format("{} is '{}', expected a rate of one node such as 400Gb/s, 3.2Tb/s or "
                  "50GB/s",
                  flag, text));
}

std::vector<std::string> node_network_overrides(const Cluster& cluster, double bytes_per_s) {
  const double line_rate = cluster.nic_bytes_per_s > 0 ? cluster.nic_bytes_per_s : bytes_per_s;
  const std::int64_t cards = std::max<std::int64_t>(1, std::llround(bytes_per_s / line_rate));
  return {fmt::format("cluster.nics_per_node={}", cards),
          fmt::format("cluster.nic_bytes_per_s={}", bytes_per_s / static_cast<double>(cards))};
}

}  // namespace shardwright::profiles
