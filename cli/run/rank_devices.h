// SPDX-License-Identifier: Apache-2.0
// The devices that the ranks of this process run on, one factory a kind.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cli/run/options.h"
#include "cli/run/ranks.h"
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

/// Throws Error when the device cannot hold the plan now; asks GPUs only.
void require_free_memory(exec::Device& device, const Schedule& schedule);

/// Which attention the device will run for the plan, chosen now: plans are built before the first
/// step. Empty on the host, which has only one. Throws Error when none takes the plan.
AttentionNote choose_attention(exec::Device& device, const RunOptions& options, bool documents);

/// Lets the ranks agree, before the first step, which of its library's algorithms serves each
/// product: that of the run so far, else that of the cluster's profile, else the fastest now. Keeps
/// the answer as products.json beside the run; empty where nothing is to be chosen.
std::function<void(exec::Executor&, const exec::Batch&)> product_choosing(
    exec::Device& device, const RunOptions& options, exec::TrainObserver* shown_to);

}  // namespace shardwright::cli
