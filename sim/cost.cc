#include "sim/cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/attention_cost.h"
#include "sim/core/check.h"
#include "sim/core/error.h"
#include "sim/gemm_cost.h"
#include "sim/memory_cost.h"

namespace shardwright::sim {

namespace {

/// Share by which a ring over NVLink slows down while kernels use the same memory system; a ring
/// over NICs has room. PyTorch FSDP studies report 5 to 15 % (hardware notes in
/// profiles/data/README.md).
constexpr double kNvlinkCollectiveSlowdown = 1.08;

Nanoseconds to_ns(double seconds) {
  return static_cast<Nanoseconds>(std::llround(seconds * 1e9));
}

}  // namespace

std::size_t CostModel::ShapeHash::operator()(const Shape& s) const {
  std::uint64_t h = static_cast<std::uint64_t>(s.m) * 0x9E3779B97F4A7C15ULL;
  h = (h ^ static_cast<std::uint64_t>(s.n)) * 0xBF58476D1CE4E5B9ULL;
  h = (h ^ static_cast<std::uint64_t>(s.k)) * 0x94D049BB133111EBULL;
  return static_cast<std::size_t>(h ^ static_cast<std::uint64_t>(s.sms) ^ (h >> 29));
}

CostModel::CostModel(const profiles::Profile& profile) : profile_(profile) {
  rates_ = profile.cost.rates.values;
  rates_.peak_flops = profile.cluster.gpu.peak_bf16_flops;
  rates_.sm_count = profile.cluster.gpu.sm_count;
  rates_.hbm_bytes_per_s = profile.cluster.gpu.hbm_bytes_per_s;
  gemm_ = sustained(profile.cost.gemm.values);
  attention_ = profile.attention();
  network_ = network_of(profile.cluster);
}

CollectiveCost CostModel::collective(const Schedule& schedule, OpKind kind, CommGroup group,
                                     double bytes) const {
  CollectiveGroup ranks;
  const std::int64_t per_node = std::min(profile_.cluster.gpus_per_node, schedule.world_ranks);
  switch (group) {
    case CommGroup::kShard:
      ranks.ranks = schedule.shard_ranks;
      ranks.ranks_per_node = std::min(per_node, schedule.shard_ranks);
      ranks.groups_per_node = std::max<std::int64_t>(1, per_node / ranks.ranks_per_node);
      break;
    case CommGroup::kReplicate:
      ranks.ranks = schedule.replicate_ranks;
      ranks.ranks_per_node = std::max<std::int64_t>(1, per_node / schedule.shard_ranks);
      ranks.groups_per_node = std::max<std::int64_t>(1, per_node / ranks.ranks_per_node);
      break;
    case CommGroup::kIntraNode:
      ranks.ranks = per_node;
      ranks.ranks_per_node = per_node;
      break;
    case CommGroup::kWorld:
      ranks.ranks = schedule.world_ranks;
      ranks.ranks_per_node = per_node;
      break;
  }
  Collective collective = Collective::kAllGather;
  if (kind == OpKind::kReduceScatter) collective = Collective::kReduceScatter;
  if (kind == OpKind::kAllReduce) collective = Collective::kAllReduce;
  if (kind == OpKind::kBroadcast) collective = Collective::kBroadcast;
  return collective_cost(profile_.cost.collectives.values, network_, ranks, collective, bytes);
}

double CostModel::product_s(std::int64_t m, std::int64_t n, std::int64_t k, int sms) {
  const auto [at, fresh] = products_.try_emplace({m, n, k, sms}, 0.0);
  if (fresh) at->second = gemm_time_s(gemm_, rates_, m, n, k, sms);
  return at->second;
}

double CostModel::efficiency_of(const Work& work) const {
  const CopyEfficiencies& copies = profile_.stack.copies;
  switch (work.memory_class) {
    case MemoryClass::kStream:
      return work.efficiency;
    case MemoryClass::kCast:
      return copies.cast;
    case MemoryClass::kConcatenate:
      return copies.concatenate;
    case MemoryClass::kCopy:
      return copies.copy;
    case MemoryClass::kScale:
      return copies.scale;
    case MemoryClass::kAdd:
      return copies.add;
  }
  return 1;
}

CostModel::Pair CostModel::device_time(const Op& op, const Resident& resident) {
  const Work& work = op.work;
  const int sms = rates_.sm_count;
  const int left = std::max(1, sms - resident.channels);
  const double times = work.kernels;
  switch (work.kind) {
    case WorkKind::kGemm: {
      // fp32 products run at the fp32 (TF32-off) rate: scale by the ratio of the peaks.
      const double slower =
          work.dtype_bytes == 4 && profile_.cluster.gpu.peak_fp32_flops > 0
              ? profile_.cluster.gpu.peak_bf16_flops / profile_.cluster.gpu.peak_fp32_flops
              : 1;
      const double scale = times * slower / work.efficiency;
      return {scale * product_s(work.m, work.n, work.k, sms),
              scale * product_s(work.m, work.n, work.k, left)};
    }
    case WorkKind::kAttention: {
      if (work.bytes > 0) {
        // Eager: two products over all scores (five backward) and passes over the score matrix.
        const double products = work.backward ? 4 : 2;
        const auto time = [&](int available, double taken) {
          return products * gemm_time_s(gemm_, rates_, work.n, work.n, work.k, available, work.m) +
                 memory_time_s(profile_.cost.memory.values, rates_, static_cast<double>(work.bytes),
                               1, taken) +
                 (times - 1) * profile_.cost.memory.values.t1_s;
        };
        return {time(sms, 0), time(left, resident.hbm_bytes_per_s)};
      }
      AttentionShape shape;
      shape.batch_heads = work.m;
      shape.kv_heads = work.m;
      shape.query_length = shape.kv_length = work.n;
      shape.head_dim = work.k;
      shape.causal = work.causal;
      return {attention_time_s(attention_, rates_, shape, work.backward, sms),
              attention_time_s(attention_, rates_, shape, work.backward, left)};
    }
    case WorkKind::kMemory: {
      if (work.bytes <= 0) return {0, 0};
      const double bytes = static_cast<double>(work.bytes);
      const double efficiency = efficiency_of(work);
      const double launches = (times - 1) * profile_.cost.memory.values.t1_s;
      return {launches + memory_time_s(profile_.cost.memory.values, rates_, bytes, efficiency),
              launches + memory_time_s(profile_.cost.memory.values, rates_, bytes, efficiency,
                                       resident.hbm_bytes_per_s)};
    }
    default:
      return {0, 0};
  }
}

CostModel::Resident CostModel::cost_collectives(const Schedule& schedule,
                                                std::vector<OpCost>& costs) const {
  const bool over_nics = schedule.shard_ranks > profile_.cluster.gpus_per_node;
  // In integers, so that how the step is cut into blocks leaves no trace in the last digit.
  std::int64_t busy_ns = 0, channel_ns = 0, hbm_bytes = 0;
  const auto add = [&](std::uint32_t i, std::int64_t executions) {
    const Op& op = schedule.ops[i];
    const double times = op.work.kernels;
    const CollectiveCost cost =
        collective(schedule, op.kind, op.work.group, static_cast<double>(op.work.bytes) / times);
    if (!std::isfinite(cost.time_s)) {
      throw Error(
          fmt::format("cluster {} does not link its nodes (nics_per_node is 0), so {} GPUs cannot "
                      "train together; at most {} can",
                      profile_.cluster.id, schedule.world_ranks, profile_.cluster.gpus_per_node));
    }
    costs[i].alone_ns = to_ns(times * cost.time_s);
    costs[i].contended_ns = over_nics || !profile_.cluster.nvlink
                                ? costs[i].alone_ns
                                : to_ns(times * cost.time_s * kNvlinkCollectiveSlowdown);
    costs[i].host_ns = to_ns(times * 4 * profile_.stack.host.forward_launch_s);
    busy_ns += executions * costs[i].alone_ns;
    channel_ns += executions * costs[i].alone_ns * cost.channels;
    hbm_bytes += executions * std::llround(times * cost.hbm_bytes);
  };
  for (const Section& section : schedule.sections) {
    for (std::uint32_t b = section.first_block; b < section.first_block + section.block_count;
         ++b) {
      const Block& block = schedule.blocks[b];
      for (std::uint32_t i = block.first_op; i < block.first_op + block.op_count; ++i) {
        if (schedule.ops[i].work.kind == WorkKind::kCollective)
          add(i, std::int64_t{block.repeats} * section.repeats);
      }
    }
  }
  Resident resident;
  if (busy_ns > 0) {
    resident.channels = static_cast<int>((channel_ns + busy_ns / 2) / busy_ns);
    resident.hbm_bytes_per_s =
        static_cast<double>(hbm_bytes) / (static_cast<double>(busy_ns) * 1e-9);
  }
  return resident;
}

void CostModel::cost(const Schedule& schedule, std::vector<OpCost>& costs) {
  costs.assign(schedule.ops.size(), {});
  const Resident resident = cost_collectives(schedule, costs);
  for (std::size_t i = 0; i < schedule.ops.size(); ++i) {
    const Op& op = schedule.ops[i];
    if (op.work.kind == WorkKind::kCollective) continue;
    if (op.work.kind == WorkKind::kHost) {
      costs[i].host_ns = to_ns(op.work.host_s);
      continue;
    }
    const Pair time = device_time(op, resident);
    costs[i].alone_ns = to_ns(time.alone_s);
    costs[i].contended_ns = std::max(costs[i].alone_ns, to_ns(time.contended_s));
    const bool backward = op.phase == Phase::kBackward || op.phase == Phase::kReduce;
    const double launch =
        backward ? profile_.stack.host.backward_launch_s : profile_.stack.host.forward_launch_s;
    costs[i].host_ns = to_ns(op.work.host_s + op.work.kernels * launch);
  }
}

}  // namespace shardwright::sim
