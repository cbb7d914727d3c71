// The cluster "host" as this machine is: its cores and memory in place of the generic ones.
#pragma once

#include <string>
#include <vector>

#include "profiles/profile.h"

namespace shardwright::cli {

inline constexpr const char* kHostCluster = "host";

/// What turns the generic processor of a profile into one of `cores` cores with `memory_bytes`, as
/// --set takes it: rates stay what they are for each core.
std::vector<std::string> sized_to(const profiles::Profile& generic, int cores, Bytes memory_bytes);

/// The shipped host, sized so, with the native stack; `overrides` after that. Throws Error.
profiles::Profile host_profile(int threads, const std::vector<std::string>& overrides = {});

}  // namespace shardwright::cli
