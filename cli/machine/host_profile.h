// SPDX-License-Identifier: Apache-2.0
// The cluster "host" as this machine is: its cores and memory in place of the generic ones. And
// what virtual clocks make of its cores: ranks of a cluster.
#pragma once

#include <string>
#include <vector>

#include "profiles/cluster_file.h"
#include "profiles/profile.h"

namespace shardwright::cli {

inline constexpr const char* kHostCluster = "host";

/// The shipped host with `threads` cores (0: all that there are) and this machine's memory, rates
/// being what they are for each core. Throws Error.
profiles::ClusterFile host_cluster(int threads = 0);
/// The same with the native stack; `overrides` after that.
profiles::Profile host_profile(int threads, const std::vector<std::string>& overrides = {});

/// Ranks that have a core each, and links: those of `run --clock virtual`.
inline constexpr const char* kVirtualCluster = "cpu-cores";

/// Cores as ranks on the nodes and links of a cluster; the cluster itself where its ranks are such
/// cores. Throws Error.
profiles::Profile virtual_profile(const std::string& network);

}  // namespace shardwright::cli
