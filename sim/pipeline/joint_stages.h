// SPDX-License-Identifier: Apache-2.0
// All stages of several replicas whose kernels vary from rank to rank and from run to run.
//
// Every pass of every micro-batch is drawn for itself: the ranks that communicate within layers
// (tensor, context and expert groups) meet in each collective (PassGraph); stages wait for one
// another by the recurrence (recurrence.h), a replica for itself; and what all replicas do
// together, the reductions of gradients and the norm before the update, begins when the slowest has
// come. Deterministic for a seed. Left out: the network's own variation, and that of weight
// gradients of the head that wait for the flush.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sim/core/pipeline.h"
#include "sim/engine/stragglers.h"
#include "sim/pipeline/chunk_times.h"
#include "sim/pipeline/recurrence.h"

namespace shardwright::sim {

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

struct JointOptions {
  int pass_ranks = 1;  // of a stage and replica, which meet in the collectives of layers
  int replicas = 1;
  double kernel_spread = 0.02;
  std::optional<double> rank_spread = {};  // as of RankDraws
  std::uint64_t seed = 1;
};

/// Of a plan on its GPUs, as many ranks of each stage as are worth simulating.
JointOptions joint_options(const Plan& plan);

class JointStages {
 public:
  explicit JointStages(const JointOptions& options) : options_(options) {}

  int ranks() const { return static_cast<int>(draws_.size()); }
  /// A step of which each stage is as late as its slowest replica. `chunks` are places in `timed`,
  /// by model_part().
  PipelineResult run(const PipelineShape& shape, const PipelineTimes& times,
                     const std::vector<std::size_t>& chunks, std::span<TimedChunk* const> timed,
                     ChunkTimer& timer);
  /// What the update of the stage's slowest rank takes more, of the last run().
  Nanoseconds update_longer(std::int32_t stage) const {
    return update_longer_[static_cast<std::size_t>(stage)];
  }
  /// Means over ranks: in collectives for the last one to join, and what a stage waits for others
  /// beyond the bubble of a step that does not vary.
  Nanoseconds waiting_ns() const { return waiting_ns_; }
  Nanoseconds bubble_longer_ns() const { return bubble_longer_ns_; }

 private:
  struct Graphs {
    PassGraph forward, backward, update;
  };
  std::span<const RankDraws> ranks_of(std::int32_t replica, std::int32_t stage) const;
  PipelineTimes vary(const PipelineShape& shape, const PipelineTimes& times,
                     const std::vector<std::size_t>& chunks, std::int32_t replica);
  Nanoseconds update(const PipelineShape& shape, const std::vector<std::size_t>& chunks,
                     std::int32_t stage) const;

  JointOptions options_;
  std::vector<RankDraws> draws_;  // by replica, stage, rank of the pass
  std::int32_t stages_ = 0;
  std::vector<Graphs> graphs_;  // by distinct chunk
  std::vector<Nanoseconds> update_longer_;
  Nanoseconds waiting_ns_ = 0, bubble_longer_ns_ = 0;
};

}  // namespace shardwright::sim
