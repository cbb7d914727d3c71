// SPDX-License-Identifier: Apache-2.0
// The time of a list of operations (body.h) on a rank: two in-order streams, compute and
// communication, and a host that issues both.
//
// A blocking collective starts when compute has come so far and holds it up; one that runs beside
// starts at the same point and slows what computes meanwhile (fewer SMs, shared memory bandwidth),
// until an operation joins it. One that runs beside another micro-batch costs the SMs that it
// holds, and what of it is longer than the list. A collective in pieces runs inside a product: a
// ring of n pieces (userbuffers' all-gather, PyTorch's async) takes max(product, collective +
// product / n), a pipelined reduce-scatter max(product + collective / s, product / s + collective)
// with s pieces and the SMs that its kernels hold. The host issues ahead of the device, so a list
// takes the longer of its device time and its launches. Where the host waits for a result the
// device runs dry: from there on a kernel starts when it has been issued and those before it have
// ended.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "profiles/profile.h"
#include "sim/accounting.h"
#include "sim/cost/work_time.h"
#include "sim/parallel/body.h"
#include "sim/parallel/layout.h"

namespace shardwright::sim {

struct BodyTime {
  double device_s = 0;   // compute stream, waits for collectives included
  double host_s = 0;     // launches
  double delayed_s = 0;  // of device_s: what a schedule may move (weight gradients)
  double flops = 0;
  double beside_others_s = 0;  // of what waits for another micro-batch's operations to hide it
  std::array<double, kCommGroups> exposed_s{};  // of device_s, by group
  CommunicationByGroup sent{};

  double exposed() const;
  void add(const BodyTime& other, double times);
};

/// When an operation of a list runs, from the start of the list.
struct OpRun {
  std::size_t op = 0;  // of the list
  bool communication = false;
  double begin_s = 0, end_s = 0;
};

class BodyCosts {
 public:
  explicit BodyCosts(const profiles::Profile& profile);

  /// Groups of what follows, and what of it graphs hold.
  void place(const Layout& layout, CudaGraphs graphs = CudaGraphs::kNone);
  const Layout& layout() const { return layout_; }
  const Gpu& gpu() const { return profile_.cluster.gpu; }

  /// `runs`, where given, takes when each operation runs. `resident`: collectives of other layers
  /// that are there all the time.
  BodyTime time(const Ops& ops, bool backward, std::vector<OpRun>* runs = nullptr,
                const Sharing& resident = {});
  /// What a collective leaves to kernels beside it.
  static Sharing sharing(const CollectiveCost& cost);
  /// Of one collective alone; infinite where nodes are not linked.
  CollectiveCost collective(const CollectiveWork& collective);
  /// A message of `bytes` between neighbours in the pipeline.
  double transfer_s(std::int64_t stage, double bytes) const;
  double memory_s(double bytes, double efficiency) const;
  /// Over the link to the host. Both ways at once reach together what one reaches alone
  /// (nvbandwidth: 175 and 172 GB/s at once, 359 and 377 alone, GB300).
  double host_link_s(double bytes) const { return bytes / profile_.cluster.gpu.pcie_bytes_per_s; }
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
  /// Of large GEMMs in bf16.
  double flops_s(double flops) const;
  double launch_s(bool backward) const;

 private:
  struct Streams;
  struct Typed {
    TypedGemm gemm;
    double operand_bytes = 2;
  };
  CollectiveCost tokens_to_experts(const CollectiveWork& collective) const;
  double launches_s(const Op& op, bool backward) const;
  double product_s(const Op& op, int sms);
  double products_s(const Op& op, int sms);
  double work_s(const Op& op, const Sharing& sharing);
  double exchanged_pieces_s(const Op& op, double product_s);
  double pieces_s(const Op& op, double product_s);
  void run(const Op& op, Streams& streams, BodyTime& result);

  profiles::Profile profile_;
  KernelCosts kernels_;
  NodeNetwork network_;
  Layout layout_;
  CudaGraphs graphs_ = CudaGraphs::kNone;
  std::array<Typed, 4> typed_;   // by Precision
  double loss_bytes_per_s_ = 0;  // at most, by the stack's kernel; 0: as others
  std::unordered_map<ProductShape, double, ProductShapeHash> products_;
};

/// What a rank of a group of `ranks` sends.
CommunicationBytes sent_bytes(const CollectiveWork& collective, double ranks);

}  // namespace shardwright::sim
