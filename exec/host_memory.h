// SPDX-License-Identifier: Apache-2.0
// Plain memory of the host as an allocation, for devices that have no better one, and how much of
// it there still is.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "exec/device.h"

namespace shardwright::exec {

/// Throws Error when the machine refuses it.
std::unique_ptr<Allocation> pageable_memory(Bytes bytes);

/// What this process may still take before Linux ends one: what is available, with swap, or what
/// its control group (a container's) leaves, if that is less; none where Linux does not say.
std::optional<Bytes> host_memory_left(const std::filesystem::path& meminfo = "/proc/meminfo",
                                      const std::filesystem::path& group = "/sys/fs/cgroup");

// Where a rank's host threads run: on the processors that are near its GPU.
//
// On nodes of two sockets a launch, a copy from pinned memory or a wait that begins on the other
// socket crosses the link between them. Linux says for every PCI device which processors are local.

/// "0-3,8,10-11" as numbers; none where it is no such list.
std::optional<std::vector<int>> parse_cpu_list(std::string_view text);

/// Processors that are local to the device with this PCI address ("0000:1b:00.0"); empty where the
/// machine does not say, or all are.
std::vector<int> cpus_near(const std::string& pci_address,
                           const std::filesystem::path& devices = "/sys/bus/pci/devices");

/// The calling thread, and those that it starts from now on, run on these processors as far as they
/// are allowed to it already. False, and nothing changed, where none of them is.
bool bind_this_thread(const std::vector<int>& cpus);

}  // namespace shardwright::exec
