// SPDX-License-Identifier: Apache-2.0
// Proves that a step of a pipeline ends, whatever its operations last: no stage waits for ever.
//
// A step is a marked graph: every operation needs all of its conditions and none is a choice. So it
// ends under every timing if it ends when each operation begins as late as a device may make it:
// after all that its host issued before, whatever their streams. That order keeps the waits for
// events, of streams and of the host, which are all for operations issued before; collectives are
// of one stage, whose ranks have one program, or behind the last message. Only messages remain: a
// fetch needs its message, a post waits for nobody (Communicator). Messages of a channel arrive in
// order, so which post meets which fetch is no matter of time either, and is compared first.
//
// A transport that holds a post until its message is taken asks for more: check_rendezvous.
// tests/sim/completes_test.cc counts which schedules complete over which transports.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/core/schedule.h"

namespace shardwright::sim {

/// Throws Error with a sentence that names a message that meets none or another one, or the stages
/// that wait for one another and for what. `stages` are those of one pipeline, in order.
void check_completes(const std::vector<Schedule>& stages);

/// "forward 5 of chunk 1"; without a pass what stages exchange behind all of them.
std::string message_name(const std::optional<Action>& pass);

// Proves that a step of a pipeline ends over a transport that holds a message until it is taken, as
// NCCL does, where each sender, receiver and direction has a queue (sim/core/message_queue.h).
//
// A device begins operations as late as it may: in the order in which its host issued them,
// whatever their streams, because streams may share a queue of the hardware. A send or a receive
// ends when both have begun; what waits for its event, or writes into the slot of memory that it
// uses, begins when it has ended. Walked so, a step that ends does so under every timing.

/// Throws Error with a sentence that names the stages that wait for one another and for what.
/// `stages` are those of one pipeline, in order.
void check_rendezvous(const std::vector<Schedule>& stages);

}  // namespace shardwright::sim
