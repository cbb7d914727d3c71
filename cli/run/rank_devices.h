// SPDX-License-Identifier: Apache-2.0
// The devices that the ranks of this process run on, one factory a kind.
#pragma once

#include <memory>
#include <string>

#include "cli/run/options.h"
#include "exec/device.h"

namespace shardwright::cli {

class RankDevices {
 public:
  virtual ~RankDevices() = default;
  /// Called on the thread of the rank, `place` of this process's ranks on this machine. The factory
  /// outlives the device.
  virtual std::unique_ptr<exec::Device> make(int place) = 0;
};

/// `ranks` run in this process.
std::unique_ptr<RankDevices> make_rank_devices(const RunOptions& options, int ranks);

/// What a device that has run chose by itself, one sentence; empty: nothing.
std::string choice_of(const exec::Device& device);

}  // namespace shardwright::cli
