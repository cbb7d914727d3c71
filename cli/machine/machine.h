// SPDX-License-Identifier: Apache-2.0
// What this machine has, found without linking any of it: libraries are opened at run time, so the
// same binary can ask on a laptop without a driver and on a node with eight GPUs.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/units.h"

namespace shardwright::cli {

/// One thing that a machine may have.
struct Component {
  std::string key{};    // stable name in JSON: "cuda_driver"
  std::string title{};  // "CUDA driver"
  bool present = false;
  std::string version{};  // empty when absent or unknown
  std::string detail{};   // where it is, or one clause on why it is not there
};

struct InstalledGpu {
  std::string name{};
  Bytes memory_bytes = 0;
  std::string compute_capability{};  // "9.0"
  int multiprocessors = 0;
};

struct Machine {
  std::string operating_system{};  // "Debian GNU/Linux 12 (bookworm)"
  std::string processor{};
  int cores = 0;
  Bytes memory_bytes = 0;
  bool has_apt = false;
  bool in_container = false;
  /// Display and compute devices of NVIDIA on the PCI bus, with or without a driver.
  int nvidia_devices = 0;
  /// The newest CUDA that the driver supports: 13000 is 13.0; 0 without a driver.
  int driver_cuda_version = 0;
  std::vector<Component> components{};
  std::vector<InstalledGpu> gpus{};
  /// Whether every GPU reads the memory of every other; with fewer than two there is nothing to
  /// say.
  std::optional<bool> peer_access{};

  /// The component with that key; asking for one that is not probed is a bug.
  const Component& component(std::string_view key) const;
  bool has(std::string_view key) const { return component(key).present; }
};

/// Probes; takes some tens of milliseconds where CUDA libraries are installed. Never throws for
/// what is missing or broken: that is what it reports.
Machine probe_machine();

}  // namespace shardwright::cli
