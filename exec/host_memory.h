// SPDX-License-Identifier: Apache-2.0
// Plain memory of the host as an allocation, for devices that have no better one, and how much of
// it there still is.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "exec/device.h"

namespace shardwright::exec {

/// Throws Error when the machine refuses it.
std::unique_ptr<Allocation> pageable_memory(Bytes bytes);

/// What this process may still take before Linux ends one: what is available, with swap, or what
/// its control group (a container's) leaves, if that is less; none where Linux does not say.
std::optional<Bytes> host_memory_left(const std::filesystem::path& meminfo = "/proc/meminfo",
                                      const std::filesystem::path& group = "/sys/fs/cgroup");

}  // namespace shardwright::exec
