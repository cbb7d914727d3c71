// SPDX-License-Identifier: Apache-2.0
// Where a rank's host threads run: on the processors that are near its GPU.
//
// On nodes of two sockets a launch, a copy from pinned memory or a wait that begins on the other
// socket crosses the link between them. Linux says for every PCI device which processors are local.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright::exec {

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
