// SPDX-License-Identifier: Apache-2.0
// Nodes with another network than the cluster's file has: the rate of a whole node, as it is sold.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "profiles/cluster_file.h"

namespace shardwright::profiles {

/// "400Gb/s", "3.2Tb/s", "50GB/s" as bytes per second. Throws Error naming `flag` and what is
/// accepted.
double parse_network_rate(std::string_view flag, const std::string& text);

/// Overrides (--set) that give each node `bytes_per_s`, in network cards of about the rate that the
/// cluster has.
std::vector<std::string> node_network_overrides(const Cluster& cluster, double bytes_per_s);

}  // namespace shardwright::profiles
