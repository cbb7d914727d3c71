// SPDX-License-Identifier: Apache-2.0
// What one operation of a unit costs on a profile: its kernels, alone or beside a collective; the
// collective that it is, or that runs inside it; and what the host needs to launch it.
//
// A collective in pieces runs inside a GEMM: a ring of n pieces (userbuffers' all-gather, PyTorch's
// async) takes max(GEMM, collective + GEMM / n), a pipelined reduce-scatter max(GEMM + collective /
// s, GEMM / s + collective) with s pieces and the SMs that its kernels hold. GEMMs of one shape are
// looked up, not computed again.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>

#include "profiles/profile.h"
#include "sim/core/layout.h"
#include "sim/core/op.h"
#include "sim/cost/collectives.h"
#include "sim/cost/work_time.h"

namespace shardwright::sim {

class OpCosts {
 public:
  explicit OpCosts(const profiles::Profile& profile);

  /// Where the groups of what follows are. Several GPUs are under the load of training
  /// (Gpu::training_load); short runs on one hold their burst clocks.
  void place(const Layout& layout);
  /// Kernels on the part of a device that each of `sharers` ranks has.
  void share_device(std::int64_t sharers);

  const profiles::Profile& profile() const { return profile_; }
  const KernelCosts& kernels() const { return kernels_; }
  const Layout& layout() const { return layout_; }
  /// What an NVLink domain brings to the network.
  const NodeNetwork& network() const { return network_; }
  const Gpu& gpu() const { return profile_.cluster.gpu; }

  /// Seconds of the kernels of an operation; 0 where it has none.
  double kernel_s(const Op& op, const Sharing& sharing = {});
  /// Of a GEMM that takes `gemm_s` alone, with the collective inside it.
  double with_collective_s(const Op& op, double gemm_s);
  /// Infinite where nodes are not linked.
  CollectiveCost collective(const CollectiveWork& work) const;
  /// What a collective leaves to kernels beside it.
  static Sharing sharing(const CollectiveCost& cost);
  /// A message of `bytes` between neighbours in the pipeline.
  double transfer_s(std::int64_t stage, double bytes) const;
  double memory_s(double bytes, double efficiency) const;
  /// Over the link to the host. Both ways at once reach together what one reaches alone
  /// (nvbandwidth: 175 and 172 GB/s at once, 359 and 377 alone, GB300).
  double host_link_s(double bytes) const { return bytes / profile_.cluster.gpu.pcie_bytes_per_s; }
  /// Of large GEMMs in bf16.
  double flops_s(double flops) const;
  /// The host's time for one kernel.
  double launch_s(bool backward) const;
  /// To launch the operation; nothing where a CUDA graph holds it.
  double launches_s(const Op& op, bool backward) const;
  /// The Python around those launches.
  double module_s(const Op& op, bool backward) const;
  /// By what kernels stretch a collective beside them.
  double stretched(bool in_node) const {
    const profiles::ContentionParams& contention = profile_.cost.contention.values;
    return in_node ? contention.nvlink_collectives : contention.other_collectives;
  }
  /// Of the rate of kernels that fill the device, beside that collective.
  double kept_beside(const CollectiveCost& cost) const {
    return (1 - cost.channels / static_cast<double>(kernels_.rates.sm_count)) /
           std::max(1.0, profile_.cost.contention.values.kernels);
  }

 private:
  struct Typed {
    TypedGemm gemm;
    double operand_bytes = 2;
  };
  void set_kernels();
  CollectiveCost tokens_to_experts(const CollectiveWork& work) const;
  double gemm_s(const Op& op, std::int64_t groups, int sms);
  double gemms_s(const Op& op, int sms);
  double exchanged_pieces_s(const Op& op, double gemm_s) const;

  profiles::Profile profile_;
  KernelCosts kernels_;
  NodeNetwork network_;
  Layout layout_;
  std::int64_t sharers_ = 1;
  bool loaded_ = false;
  std::array<Typed, 4> typed_;   // by Precision
  double loss_bytes_per_s_ = 0;  // at most, by the framework's kernel; 0: as others
  std::unordered_map<ProductShape, double, ProductShapeHash> gemms_;
};

}  // namespace shardwright::sim
