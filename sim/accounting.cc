// SPDX-License-Identifier: Apache-2.0
#include "sim/accounting.h"

namespace shardwright::sim {

void CommunicationBytes::add(const CommunicationBytes& other, double times) {
  all_gather += times * other.all_gather;
  reduce_scatter += times * other.reduce_scatter;
  all_reduce += times * other.all_reduce;
  all_to_all += times * other.all_to_all;
  point_to_point += times * other.point_to_point;
}

CommunicationBytes sum_of(const CommunicationByGroup& groups) {
  CommunicationBytes sum;
  for (const CommunicationBytes& group : groups) sum.add(group);
  return sum;
}

CommunicationBytes sent_bytes(const CollectiveWork& collective, double ranks) {
  CommunicationBytes sent;
  const double share = collective.bytes * (ranks - 1) / ranks;
  switch (collective.pattern) {
    case Pattern::kRingStep:
      sent.point_to_point = collective.bytes;
      break;
    case Pattern::kExchange:
    case Pattern::kTokens:
      sent.all_to_all = share;
      break;
    case Pattern::kCollective:
      if (collective.kind == Collective::kAllGather) sent.all_gather = share;
      if (collective.kind == Collective::kReduceScatter) sent.reduce_scatter = share;
      if (collective.kind == Collective::kAllReduce) sent.all_reduce = 2 * share;
      break;
  }
  return sent;
}

double executed_flops(const Schedule& schedule) {
  double total = 0;
  for (const Section& section : schedule.sections) {
    double in_section = 0;
    for (const Block& block : schedule.blocks_of(section)) {
      double in_block = 0;
      for (const Op& op : schedule.ops_of(block)) {
        const Work& work = op.work;
        const double m = static_cast<double>(work.m), n = static_cast<double>(work.n),
                     k = static_cast<double>(work.k);
        if (work.kind == WorkKind::kGemm)
          in_block +=
              2 * m * n * k * (work.groups > 1 ? static_cast<double>(work.groups) : work.kernels);
        if (work.kind == WorkKind::kAttention)
          in_block += (work.backward ? 2.5 : 1) * 4 * m * n * n * k * (work.causal ? 0.5 : 1) *
                      work.attended;
      }
      in_section += in_block * block.repeats;
    }
    total += in_section * section.repeats;
  }
  return total;
}

CommunicationByGroup communication_by_group(const Schedule& schedule) {
  CommunicationByGroup sent;
  const auto add = [&](CommGroup group, double ranks, const CommunicationBytes& bytes,
                       double times) {
    sent[static_cast<std::size_t>(ranks > 1 ? told_as(group) : group)].add(bytes, times);
  };
  for (const Section& section : schedule.sections) {
    for (const Block& block : schedule.blocks_of(section)) {
      const double times = static_cast<double>(block.repeats) * section.repeats;
      for (const Op& op : schedule.ops_of(block)) {
        if (op.collective) {
          const double ranks = static_cast<double>(schedule.layout.group(op.collective.group).size);
          add(op.collective.group, ranks, sent_bytes(op.collective, ranks), times);
          continue;
        }
        if (op.work.kind != WorkKind::kCollective) continue;
        const double ranks = static_cast<double>(schedule.group(op.work.group).size);
        const double share = static_cast<double>(op.work.bytes) * ((ranks - 1) / ranks);
        CommunicationBytes bytes;
        if (op.kind == OpKind::kAllGather) bytes.all_gather = share;
        if (op.kind == OpKind::kReduceScatter) bytes.reduce_scatter = share;
        if (op.kind == OpKind::kAllReduce) bytes.all_reduce = 2 * share;
        add(op.work.group, ranks, bytes, times);
        if (op.work.expert_bytes == 0) continue;
        CollectiveWork experts;
        experts.group = CommGroup::kExpertData;
        experts.kind = op.kind == OpKind::kAllReduce       ? Collective::kAllReduce
                       : op.kind == OpKind::kReduceScatter ? Collective::kReduceScatter
                                                           : Collective::kAllGather;
        experts.bytes = static_cast<double>(op.work.expert_bytes);
        const double holders = static_cast<double>(schedule.group(experts.group).size);
        add(CommGroup::kData, holders, sent_bytes(experts, holders), times);
      }
    }
  }
  return sent;
}

}  // namespace shardwright::sim
