// SPDX-License-Identifier: Apache-2.0
// What a schedule adds up to, whatever it costs: FLOPs that are executed and bytes that are sent.
#pragma once

#include "sim/core/schedule.h"

namespace shardwright::sim {

/// Bytes that one rank sends (and receives) in a step, by kind of collective.
struct CommunicationBytes {
  double all_gather = 0, reduce_scatter = 0, all_reduce = 0;
};

/// Matrix-product and attention FLOPs that the operations of a step really do, recomputation
/// included.
double executed_flops(const Schedule& schedule);

/// A gather or scatter of S bytes over n ranks sends S (n-1)/n, an all-reduce twice that.
CommunicationBytes communication_bytes(const Schedule& schedule);

}  // namespace shardwright::sim
