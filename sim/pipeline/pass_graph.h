// SPDX-License-Identifier: Apache-2.0
// A pass of a chunk on several ranks whose kernels vary in time and that meet in the collectives of
// their layers.
//
// An operation begins when its stream is free, what it waits for is there and, in a collective, the
// last rank has joined. Ranks run the same operations in the same order, so one walk in host order
// finds all times. What else held an operation back in the pass that the engine timed (the host, or
// a kernel of another stream) holds it back until the same moment here; contention stays what it
// was. With kernels that do not vary the walk gives the engine's times to the nanosecond.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/engine/rank_draws.h"
#include "sim/pipeline/chunk_times.h"

namespace shardwright::sim {

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
