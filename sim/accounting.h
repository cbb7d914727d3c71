// SPDX-License-Identifier: Apache-2.0
// What a schedule adds up to, whatever it costs: FLOPs that are executed and bytes that are sent.
#pragma once

#include <array>

#include "sim/core/schedule.h"

namespace shardwright::sim {

/// Bytes that one rank sends (and receives) in a step, by kind of collective.
struct CommunicationBytes {
  double all_gather = 0, reduce_scatter = 0, all_reduce = 0;
  double all_to_all = 0;      // among experts or parts of a sequence
  double point_to_point = 0;  // between stages, and around the ring of context parallelism

  double total() const {
    return all_gather + reduce_scatter + all_reduce + all_to_all + point_to_point;
  }
  void add(const CommunicationBytes& other, double times = 1);
};

/// Of every group that communicates.
using CommunicationByGroup = std::array<CommunicationBytes, kCommGroups>;
CommunicationBytes sum_of(const CommunicationByGroup& groups);

/// Matrix-product and attention FLOPs that the operations of a step really do, recomputation
/// included.
double executed_flops(const Schedule& schedule);

/// What a rank of a group of `ranks` sends.
CommunicationBytes sent_bytes(const CollectiveWork& collective, double ranks);

/// A gather or scatter of S bytes over n ranks sends S (n-1)/n, an all-reduce twice that. Groups
/// that divide the replicas count as kData.
CommunicationByGroup communication_by_group(const Schedule& schedule);

}  // namespace shardwright::sim
