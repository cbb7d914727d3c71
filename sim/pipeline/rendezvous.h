// SPDX-License-Identifier: Apache-2.0
// Proves that a step of a pipeline ends over a transport that holds a message until it is taken, as
// NCCL does, where each sender, receiver and direction has a queue (sim/core/message_queue.h).
//
// A device begins operations as late as it may: in the order in which its host issued them,
// whatever their streams, because streams may share a queue of the hardware. A send or a receive
// ends when both have begun; what waits for its event, or writes into the slot of memory that it
// uses, begins when it has ended. Walked so, a step that ends does so under every timing
// (sim/pipeline/completes.h).
#pragma once

#include <vector>

#include "sim/core/schedule.h"

namespace shardwright::sim {

/// Throws Error with a sentence that names the stages that wait for one another and for what.
/// `stages` are those of one pipeline, in order.
void check_rendezvous(const std::vector<Schedule>& stages);

}  // namespace shardwright::sim
