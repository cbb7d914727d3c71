// SPDX-License-Identifier: Apache-2.0
// Which GPUs this process can use, or why it can use none. Safe to ask on any machine.
#pragma once

#include <string>
#include <vector>

#include "sim/core/units.h"

namespace shardwright::exec::cuda {

struct UsableGpu {
  int index = 0;  // by the runtime's count
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  Bytes memory_bytes = 0;
  std::string pci_address;  // "0000:1b:00.0"
};

struct Gpus {
  std::vector<UsableGpu> usable;
  /// Why there is none, as one clause: "there is no CUDA driver on this machine". Empty when there
  /// is one.
  std::string problem;
};

/// The oldest that the kernels are written for: A100.
inline constexpr int kOldestComputeMajor = 8;

/// The first call of CUDA in a process. Asks for as many hardware queues as there can be, unless
/// the environment already says how many: with a few ranks on one GPU, streams that share a queue
/// would wait for each other.
Gpus find_gpus();

}  // namespace shardwright::exec::cuda
