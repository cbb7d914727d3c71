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
// A transport that holds a post until its message is taken asks for more: rendezvous.h.
// tests/sim/completes_test.cc counts which schedules complete over which transports.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/core/schedule.h"
#include "sim/engine/stragglers.h"
#include "sim/pipeline/chunk_times.h"

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

// A pass of a chunk on several ranks whose kernels vary in time and that meet in the collectives of
// their layers.
//
// An operation begins when its stream is free, what it waits for is there and, in a collective, the
// last rank has joined. Ranks run the same operations in the same order, so one walk in host order
// finds all times. What else held an operation back in the pass that the engine timed (the host, or
// a kernel of another stream) holds it back until the same moment here; contention stays what it
// was. With kernels that do not vary the walk gives the engine's times to the nanosecond.

/// What variation does to a pass; below 0 where it is faster.
struct VariedPass {
  Nanoseconds longer_ns = 0;          // until the last rank is through
  Nanoseconds delayed_longer_ns = 0;  // of it, weight gradients that a schedule may put off
  Nanoseconds waiting_ns = 0;         // mean over ranks: for the last one to join
};

class PassGraph {
 public:
  /// `operations` as ChunkTimer::pass_operations() gives them.
  PassGraph(const Schedule& schedule, const std::vector<PassOperation>& operations);

  /// `first` is the number of the first draw.
  VariedPass run(std::span<const RankDraws> ranks, std::uint64_t first) const;
  std::uint64_t draws() const { return nodes_.size(); }

 private:
  struct Node {
    enum class Kind : std::uint8_t { kKernel, kCollective, kOther };
    Kind kind = Kind::kOther;
    bool delayed = false;  // a weight gradient
    std::uint8_t stream = 0;
    std::int32_t deps[kMaxWaits];  // -1: none
    Nanoseconds held_until_ns = 0;
    Nanoseconds takes_ns = 0;
  };
  struct Rank {
    std::vector<Nanoseconds> free;  // by stream
    std::vector<Nanoseconds> ends;  // by node
  };
  static Nanoseconds ready(const Node& node, const Rank& rank);

  std::vector<Node> nodes_;
  std::size_t streams_ = 0;
  Nanoseconds end_ns_ = 0;  // of the compute stream without variation
};

}  // namespace shardwright::sim
