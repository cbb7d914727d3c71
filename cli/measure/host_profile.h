// SPDX-License-Identifier: Apache-2.0
// The cluster "host" as this machine is: its cores and memory in place of the generic ones.
#pragma once

#include <string>
#include <vector>

#include "profiles/profile.h"

namespace shardwright::cli {

inline constexpr const char* kHostCluster = "host";

/// The shipped host with `threads` cores and this machine's memory, rates being what they are for
/// each core, and the native stack; `overrides` after that. Throws Error.
profiles::Profile host_profile(int threads, const std::vector<std::string>& overrides = {});

}  // namespace shardwright::cli
