// SPDX-License-Identifier: Apache-2.0
// The hardware and software that a prediction is made for: one value that the simulator takes.
//
// Assembled from a cluster, its GPU, the GPU's cost parameters and a stack, then changed by what
// the cluster file sets and by the user's --set. Every value has a path: cluster.nic_efficiency,
// gpu.hbm_bytes_per_s, cost.gemm.e, cost.attention.fa2.forward_flops, stack.host.step_s.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/gpu_cost.h"
#include "profiles/gpu_params.h"
#include "profiles/uncertainty/uncertainty.h"
#include "sim/core/cluster.h"
#include "sim/core/stack.h"

namespace shardwright::profiles {

class FieldList;
struct ClusterFile;
struct StackFile;

struct Profile {
  Cluster cluster;
  GpuCost cost;  // of cluster.gpu; cost.rates holds the GPU's own rates
  Stack stack;
  std::vector<MeasuredProduct> measured_products;  // win over cost.gemm
  Origins origins;                                 // by path: "gpu.hbm_bytes_per_s"
  Uncertainty uncertainty;  // of the shipped parameters; empty for parts given by hand
  /// By CostGroup: half widths of calibrated groups, 0 for the others; their level is
  /// that of uncertainty.h.
  std::array<double, kCostGroups> calibrated_half_width{};
  /// Models of which a step with this stack was measured, and values moved for it.
  std::vector<std::string> anchored_models;

  /// The attention kernel that the stack runs on this GPU: the one it names, else (a kernel this
  /// GPU has not) FlashAttention-2. Throws Error for a name that no GPU has.
  const AttentionParams& attention() const;
};

/// Every value of the profile, by path. Valid while `profile` lives and is not moved.
FieldList fields_of(Profile& profile);

/// A profile of shipped or own files; `overrides` are "KEY=VALUE" as given to --set. Throws Error.
Profile load_profile(const std::string& cluster, const std::string& stack,
                     const std::vector<std::string>& overrides = {});

/// As load_profile, from parts that are already there (rows of the ledger, a test).
Profile make_profile(const ClusterFile& cluster, const StackFile& stack, const GpuCosts& costs,
                     const std::vector<std::string>& overrides = {});
/// The same with the cost parameters that ship.
Profile make_profile(const ClusterFile& cluster, const StackFile& stack,
                     const std::vector<std::string>& overrides = {});

/// `base` with an entry in "set" for each value of `profile`, except those of its stack, that it
/// does not give: a file that makes this profile again. Measured products are the base's.
ClusterFile cluster_file_of(const Profile& profile, ClusterFile base);

/// Applies one "KEY=VALUE". Throws Error that names the nearest paths when the key is unknown, and
/// what is accepted when the value is not.
void override_value(Profile& profile, std::string_view key_value);

/// Whether one of the "KEY=VALUE" is of that path.
bool is_overridden(const std::vector<std::string>& overrides, std::string_view path);

}  // namespace shardwright::profiles
