// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/cost/op_cost.h"

namespace shardwright::sim {

namespace {

/// An optimizer's state that the host holds passes in and out beside the update. Both ways at once
/// reach together what one reaches alone (OpCosts::host_link_s).
double state_passes_s(const Schedule& schedule, const Gpu& gpu) {
  const UnitSizes& sizes = schedule.unit_sizes;
  const std::int64_t owned =
      sizes.total(schedule.layers) / std::max<std::int64_t>(1, schedule.shard_ranks());
  const std::int64_t each =
      bytes_of(schedule.sharding.master_dtype) + 2 * bytes_of(schedule.sharding.moment_dtype);
  return 2.0 * static_cast<double>(owned * each) / gpu.pcie_bytes_per_s;
}

/// Throws Error where sums over the step would go beyond what counts nanoseconds.
void require_sum(double ns) {
  if (!(ns * 1e-9 <= kLongestStep_s)) refuse_duration("the step", ns * 1e-9);
}

}  // namespace

double in_device_memory(const profiles::Profile& profile, std::int64_t world_ranks,
                        profiles::CollectiveParams& params) {
  const Gpu& gpu = profile.cluster.gpu;
  const std::int64_t sharers = profile.cluster.ranks_per_device(world_ranks);
  if (gpu.is_processor()) return turns(gpu, sharers);
  // The links that the parameters were fitted on are not used: a copy reads and writes memory.
  const profiles::MemoryParams& memory = profile.cost.memory.values;
  const double copied = gpu.hbm_bytes_per_s * memory.stream_efficiency / 2;
  params.simple = {.base_s = 2 * memory.t1_s, .hop_s = memory.t1_s, .bytes_per_s = copied};
  params.reduce_copy_bytes_per_s = 2 * copied;
  return static_cast<double>(sharers);
}

CostModel::CostModel(const profiles::Profile& profile) : ops_(profile) {}

CollectiveCost CostModel::collective(const Schedule& schedule, OpKind kind, CommGroup group,
                                     double bytes) const {
  // Racks are NVLink domains of several nodes.
  const std::int64_t per_node =
      std::max(std::min(ops_.profile().cluster.gpus_per_node, schedule.world_ranks()),
               schedule.layout.domain);
  const RankGroup& members = schedule.group(group);
  CollectiveGroup ranks;
  ranks.ranks = members.size;
  ranks.ranks_per_node = members.members_per_node(per_node);
  ranks.groups_per_node = std::max<std::int64_t>(1, per_node / ranks.ranks_per_node);
  profiles::CollectiveParams params = ops_.profile().cost.collectives.values;
  if (ops_.profile().cluster.devices_per_node > 0) {
    ranks.copies_take_turns = in_device_memory(ops_.profile(), schedule.world_ranks(), params);
  }
  Collective collective = Collective::kAllGather;
  if (kind == OpKind::kReduceScatter) collective = Collective::kReduceScatter;
  if (kind == OpKind::kAllReduce) collective = Collective::kAllReduce;
  if (kind == OpKind::kBroadcast) collective = Collective::kBroadcast;
  return collective_cost(params, ops_.network(), ranks, collective, bytes);
}

CollectiveCost CostModel::collective(const Schedule& schedule, const Op& op) const {
  if (op.collective) return ops_.collective(op.collective);
  const auto bytes = [&](std::int64_t all) {
    return static_cast<double>(all) / static_cast<double>(op.work.kernels);
  };
  CollectiveCost cost = collective(schedule, op.kind, op.work.group, bytes(op.work.bytes));
  if (op.work.expert_bytes > 0) {
    const CollectiveCost experts =
        collective(schedule, op.kind, CommGroup::kExpertData, bytes(op.work.expert_bytes));
    cost.time_s += experts.time_s;
    cost.hbm_bytes += experts.hbm_bytes;
    cost.channels = std::max(cost.channels, experts.channels);
  }
  return cost;
}

CostModel::Pair CostModel::device_time(const Op& op, const Sharing& resident) {
  const double alone_s = ops_.kernel_s(op);
  if (op.work.kind == WorkKind::kTransfer) return {alone_s, alone_s};
  const double contended_s = ops_.kernels().contention * ops_.kernel_s(op, resident);
  if (!op.collective) return {alone_s, contended_s};
  return {ops_.with_collective_s(op, alone_s), ops_.with_collective_s(op, contended_s)};
}

Sharing CostModel::cost_collectives(const Schedule& schedule, std::vector<OpCost>& costs) const {
  // A ring over NVLink shares the memory system with kernels; a ring over NICs has room.
  const bool over_nics = schedule.shard_ranks() > ops_.profile().cluster.gpus_per_node;
  const profiles::ContentionParams& contention = ops_.profile().cost.contention.values;
  const double slowdown = over_nics || !ops_.profile().cluster.nvlink
                              ? contention.other_collectives
                              : contention.nvlink_collectives;
  // In integers, so that how the step is cut into blocks leaves no trace in the last digit.
  std::int64_t busy_ns = 0, channel_ns = 0, hbm_bytes = 0;
  const auto add = [&](std::uint32_t i, std::int64_t executions) {
    const Op& op = schedule.ops[i];
    const double times = op.work.kernels;
    const CollectiveCost cost = collective(schedule, op);
    if (!std::isfinite(cost.time_s)) {
      throw InvalidPlan(fmt::format(
          "cluster {} does not link its nodes (nics_per_node is 0), so {} GPUs cannot "
          "train together; at most {} can",
          ops_.profile().cluster.id, schedule.world_ranks(), ops_.profile().cluster.gpus_per_node));
    }
    costs[i].alone_ns = to_ns(times * cost.time_s);
    costs[i].contended_ns =
        ops_.gpu().streams_contend()
            ? to_ns(times * cost.time_s * (op.collective ? ops_.stretched(true) : slowdown))
            : costs[i].alone_ns;
    const bool backward = op.phase == Phase::kBackward;
    costs[i].host_ns = to_ns((times * ops_.profile().stack.host.collective_launches *
                                  ops_.profile().stack.host.forward_launch_s +
                              ops_.module_s(op, backward)) *
                             host_turns_);
    if (op.captured) costs[i].host_ns = 0;
    // The compute stream waits for it, so no kernel is beside it.
    if (op.collective && op.collective.overlap == Overlap::kNone) return;
    // What a unit overlaps itself is beside few of its kernels, which cost() finds.
    if (op.collective && op.collective.overlap == Overlap::kFollowing) return;
    const bool said = op.collective.sms > 0 && registered_;
    const int channels = said ? op.collective.sms : cost.channels;
    require_sum(static_cast<double>(executions) * static_cast<double>(costs[i].alone_ns) *
                std::max(1, channels));
    busy_ns += executions * costs[i].alone_ns;
    channel_ns += executions * costs[i].alone_ns * channels;
    hbm_bytes += executions * std::llround(times * cost.hbm_bytes);
  };
  for (const Section& section : schedule.sections) {
    for (const Block& block : schedule.blocks_of(section)) {
      for (std::uint32_t i = block.first_op; i < block.first_op + block.op_count; ++i) {
        if (schedule.ops[i].work.kind == WorkKind::kCollective)
          add(i, std::int64_t{block.repeats} * section.repeats);
      }
    }
  }
  Sharing resident;
  if (busy_ns > 0) {
    resident.channels = static_cast<int>((channel_ns + busy_ns / 2) / busy_ns);
    resident.hbm_bytes_per_s =
        static_cast<double>(hbm_bytes) / (static_cast<double>(busy_ns) * 1e-9);
  }
  return resident;
}

void CostModel::cost(const Schedule& schedule, std::vector<OpCost>& costs) {
  cost_beside(schedule, false, costs);
}

void CostModel::cost_of_units(const Schedule& schedule, std::vector<OpCost>& costs) {
  cost_beside(schedule, true, costs);
}

void CostModel::cost_beside(const Schedule& schedule, bool units_alone,
                            std::vector<OpCost>& costs) {
  costs.assign(schedule.ops.size(), {});
  const Cluster& cluster = ops_.profile().cluster;
  const std::int64_t sharers = cluster.ranks_per_device(schedule.world_ranks());
  ops_.share_device(sharers);
  ops_.place(schedule.layout);
  // Buffers that NCCL knows help the switch of NVLink to add, where it can.
  registered_ = ops_.profile().cost.collectives.values.nvls;
  host_turns_ = turns(cluster.gpu, sharers);
  const bool contend = cluster.gpu.streams_contend();
  Sharing resident = cost_collectives(schedule, costs);
  if (units_alone) resident = {};
  const Sharing* beside = &resident;
  Sharing own;  // of a collective that the unit overlaps with kernels that follow
  for (std::size_t i = 0; i < schedule.ops.size(); ++i) {
    const Op& op = schedule.ops[i];
    if (op.work.kind == WorkKind::kCollective) {
      if (!op.collective || op.collective.overlap != Overlap::kFollowing) continue;
      own = OpCosts::sharing(collective(schedule, op));
      if (op.collective.sms > 0) own.channels = op.collective.sms;
      beside = &own;
      continue;
    }
    if (op.joins || op.work.kind == WorkKind::kNone) beside = &resident;
    if (op.work.kind == WorkKind::kHost) {
      costs[i].host_ns = to_ns(op.work.host_s * host_turns_);
      continue;
    }
    Pair time = device_time(op, *beside);
    if (op.kind == OpKind::kOptimizer && !schedule.sharding.keeps_optimizer) {
      const double link_s = state_passes_s(schedule, ops_.profile().cluster.gpu);
      time = {std::max(time.alone_s, link_s), std::max(time.contended_s, link_s)};
    }
    costs[i].alone_ns = to_ns(time.alone_s);
    costs[i].contended_ns =
        contend ? std::max(costs[i].alone_ns, to_ns(time.contended_s)) : costs[i].alone_ns;
    const bool backward = op.phase == Phase::kBackward || op.phase == Phase::kReduce;
    costs[i].host_ns = to_ns((op.work.host_s + ops_.launches_s(op, backward)) * host_turns_);
  }
  double executions = 0, longest_ns = 0;
  for (const Section& section : schedule.sections) {
    for (const Block& block : schedule.blocks_of(section)) {
      executions += static_cast<double>(block.op_count) * block.repeats * section.repeats;
    }
  }
  for (const OpCost& cost : costs)
    longest_ns =
        std::max(longest_ns, static_cast<double>(std::max(cost.contended_ns, cost.host_ns)));
  require_sum(executions * longest_ns);
}

}  // namespace shardwright::sim
