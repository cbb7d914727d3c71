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

double executed_flops(const Schedule& schedule) {
  double total = 0;
  for (const Section& section : schedule.sections) {
    double in_section = 0;
    for (std::uint32_t b = section.first_block; b < section.first_block + section.block_count;
         ++b) {
      const Block& block = schedule.blocks[b];
      double in_block = 0;
      for (std::uint32_t i = block.first_op; i < block.first_op + block.op_count; ++i) {
        const Work& work = schedule.ops[i].work;
        const double m = static_cast<double>(work.m), n = static_cast<double>(work.n),
                     k = static_cast<double>(work.k);
        if (work.kind == WorkKind::kGemm) in_block += 2 * m * n * k * work.kernels;
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

CommunicationBytes communication_bytes(const Schedule& schedule) {
  CommunicationBytes bytes;
  const auto share = [&](CommGroup group) {
    const double n = static_cast<double>(schedule.group(group).size);
    return (n - 1) / n;
  };
  for (const Section& section : schedule.sections) {
    for (std::uint32_t b = section.first_block; b < section.first_block + section.block_count;
         ++b) {
      const Block& block = schedule.blocks[b];
      for (std::uint32_t i = block.first_op; i < block.first_op + block.op_count; ++i) {
        const Op& op = schedule.ops[i];
        if (op.work.kind != WorkKind::kCollective) continue;
        const double sent = static_cast<double>(op.work.bytes) * share(op.work.group) *
                            block.repeats * section.repeats;
        if (op.kind == OpKind::kAllGather) bytes.all_gather += sent;
        if (op.kind == OpKind::kReduceScatter) bytes.reduce_scatter += sent;
        if (op.kind == OpKind::kAllReduce) bytes.all_reduce += 2 * sent;
      }
    }
  }
  return bytes;
}

}  // namespace shardwright::sim
