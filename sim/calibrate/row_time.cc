// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/row_time.h"

#include <algorithm>
#include <cmath>

#include "sim/calibrate/rows.h"

namespace shardwright::sim {
namespace {

using profiles::MeasuredRow;
using profiles::Observation;

bool is_backward(const Observation& o) {
  return o.phase == Phase::kBackward || o.phase == Phase::kReduce;
}

/// The kernels of an operation in a stack; null where it has none of its own.
const KernelGroup* kernels_of(const Stack& stack, OpKind op) {
  switch (op) {
    case OpKind::kEmbedding:
      return &stack.embedding;
    case OpKind::kNorm:
    case OpKind::kQkNorm:
      return &stack.norm;
    case OpKind::kRope:
      return &stack.rope;
    case OpKind::kActivation:
      return &stack.gated_activation;
    case OpKind::kResidual:
      return &stack.residual;
    case OpKind::kLoss:
      return &stack.loss;
    default:
      return nullptr;
  }
}

double mixed(double alone, double contended, double share) {
  return share <= 0 ? alone : 1 / ((1 - share) / alone + share / contended);
}

}  // namespace

RowTimes::RowTimes(const profiles::Profile& profile, const Sharing& sharing)
    : profile_(profile), network_(network_of(profile.cluster)), sharing_(sharing) {}

const RowTimes::Costs& RowTimes::costs_for(std::int32_t sharers) const {
  for (const Costs& known : costs_) {
    if (known.sharers == sharers) return known;
  }
  Costs costs;
  costs.sharers = sharers;
  costs.kernels = kernel_costs(profile_, sharers);
  costs.kernels.measured.clear();
  costs.host_turns = turns(profile_.cluster.gpu, sharers);
  costs.collectives = profile_.cost.collectives.values;
  if (profile_.cluster.devices_per_node > 0) {
    costs.copies_take_turns =
        in_device_memory(profile_, sharers * profile_.cluster.devices_per_node, costs.collectives);
  }
  return costs_.emplace_back(std::move(costs));
}

double RowTimes::efficiency_of(const Observation& o) const {
  if (o.work.kind == WorkKind::kGemm) return profile_.stack.gemm_efficiency;
  if (o.op == OpKind::kOptimizer) return profile_.stack.optimizer.efficiency;
  const KernelGroup* kernels = kernels_of(profile_.stack, o.op);
  if (kernels == nullptr) return o.work.efficiency;
  return is_backward(o) ? kernels->backward_efficiency : kernels->forward_efficiency;
}

double RowTimes::kernel_s(const MeasuredRow& row, const Sharing& sharing) const {
  // Element-wise kernels of other programs run at the bandwidth itself.
  const KernelCosts& kernels = costs_for(row.operation.sharers).kernels;
  Work work = row.operation.work;
  if (row.lowered) {
    work.efficiency = efficiency_of(row.operation);
  } else if (work.kind == WorkKind::kMemory) {
    work.memory_class = MemoryClass::kStream;
  }
  if (row.operation.batch <= 1) return kernel_time_s(kernels, work, sharing);
  return kernel_time_s(kernels, work, sharing,
                       [&](std::int64_t m, std::int64_t n, std::int64_t k, int sms) {
                         return gemm_time_s(kernels.gemm, kernels.rates, m, n, k, sms,
                                            row.operation.batch, 2, work.layout);
                       });
}

double RowTimes::host_s(const Observation& o) const {
  const HostCosts& host = profile_.stack.host;
  if (o.work.kernels == 0) return host.step_s;
  const double times = o.work.kernels * costs_for(o.sharers).host_turns;
  if (is_collective(o.op)) return times * host.collective_launches * host.forward_launch_s;
  return times * (is_backward(o) ? host.backward_launch_s : host.forward_launch_s);
}

double RowTimes::collective_s(const Observation& o) const {
  const Costs& costs = costs_for(o.sharers);
  return o.work.kernels * collective_of(costs.collectives, network_, profile_.cluster.gpus_per_node,
                                        o, costs.copies_take_turns)
                              .time_s;
}

double RowTimes::alone_s(const MeasuredRow& row) const {
  const Observation& o = row.operation;
  if (o.work.kind == WorkKind::kHost) return host_s(o);
  return o.work.kind == WorkKind::kCollective ? collective_s(o) : kernel_s(row, {});
}

double RowTimes::contended_s(const MeasuredRow& row) const {
  const Observation& o = row.operation;
  if (o.work.kind == WorkKind::kHost) return host_s(o);
  const profiles::ContentionParams& contention = profile_.cost.contention.values;
  if (o.work.kind != WorkKind::kCollective) {
    return std::max(kernel_s(row, {}), contention.kernels * kernel_s(row, sharing_));
  }
  const bool in_node = o.nodes <= 1 && profile_.cluster.nvlink;
  return collective_s(o) * (in_node ? contention.nvlink_collectives : contention.other_collectives);
}

double RowTimes::seconds(const MeasuredRow& row) const {
  const double share = row.operation.contended;
  if (share < kContended) return alone_s(row);
  return mixed(alone_s(row), contended_s(row), share);
}

CollectiveCost collective_of(const profiles::CollectiveParams& params, const NodeNetwork& network,
                             std::int64_t gpus_per_node, const Observation& o,
                             double copies_take_turns) {
  CollectiveGroup group;
  group.copies_take_turns = copies_take_turns;
  group.ranks = o.ranks;
  group.ranks_per_node = (o.ranks + o.nodes - 1) / std::max<std::int64_t>(1, o.nodes);
  if (o.nodes > 1) {
    group.groups_per_node = std::max<std::int64_t>(1, gpus_per_node / group.ranks_per_node);
  }
  Collective collective = Collective::kAllGather;
  if (o.op == OpKind::kReduceScatter) collective = Collective::kReduceScatter;
  if (o.op == OpKind::kAllReduce) collective = Collective::kAllReduce;
  if (o.op == OpKind::kBroadcast) collective = Collective::kBroadcast;
  const double times = std::max<double>(1, o.work.kernels);
  // A message costs what each of two ranks gathers of the other (OpCosts::transfer_s).
  const double gathered = o.op == OpKind::kReceive ? 2 : 1;
  return collective_cost(params, network, group, collective,
                         gathered * static_cast<double>(o.work.bytes) / times);
}

Sharing sharing_of(const profiles::Profile& profile, const std::vector<MeasuredRow>& rows) {
  // Ranks that share a device have no channels: collectives are copies.
  if (profile.cluster.devices_per_node > 0) return {};
  const NodeNetwork network = network_of(profile.cluster);
  double seconds = 0, channels = 0, hbm_bytes = 0;
  for (const MeasuredRow& row : rows) {
    const Observation& o = row.operation;
    if (o.work.kind != WorkKind::kCollective) continue;
    const CollectiveCost cost =
        collective_of(profile.cost.collectives.values, network, profile.cluster.gpus_per_node, o);
    const double time = o.seconds * static_cast<double>(row.count);
    seconds += time;
    channels += time * cost.channels;
    hbm_bytes += o.work.kernels * cost.hbm_bytes * static_cast<double>(row.count);
  }
  Sharing sharing;
  if (seconds > 0) {
    sharing.channels = static_cast<int>(std::lround(channels / seconds));
    sharing.hbm_bytes_per_s = hbm_bytes / seconds;
  } else {
    sharing.channels = profile.cost.collectives.values.channels_one_node;
  }
  return sharing;
}

}  // namespace shardwright::sim
