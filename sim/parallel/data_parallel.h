// SPDX-License-Identifier: Apache-2.0
// What follows the pipeline in a step: gradients are summed over replicas, the optimizer works on
// its shard, parameters come back.
//
// Megatron's distributed optimizer (core/distributed/distributed_data_parallel.py): gradients lie
// in one buffer a chunk, cut into buckets of max(40e6, 1e6 ranks) parameters on the first stage
// only; a bucket is reduce-scattered when the last micro-batch has filled it. Parameters are
// gathered after the update, or, overlapped, bucket by bucket during the next forward. Without
// overlap both stand alone at the end. Sharded parameters (FSDP) are gathered and reduced layer by
// layer inside the bodies, or once a step with a pipeline. The norm of the gradient is the barrier
// at which all stages wait.
//
// Collectives hold SMs, so passes beside them are slower and they themselves too: the last backward
// passes beside reductions, the first forward passes beside gathers. PyTorch's DDP casts weights to
// the compute type in every forward pass, and like DeepSpeed's ZeRO it copies gradients into the
// type and the buckets of the reduction.
#pragma once

#include <vector>

#include "sim/parallel/body_cost.h"
#include "sim/parallel/stage_memory.h"

namespace shardwright::sim {

/// A chunk of one stage as its replicas see it.
struct ReducedChunk {
  double parameters = 0;                 // dense ones
  double frozen_parameters = 0;          // that are not trained (adapters.h)
  double expert_parameters = 0;          // summed over the ranks that hold the same experts
  double forward_s = 0, backward_s = 0;  // of a micro-batch
  double last_backward_s = 0;            // when its gradients are complete
};

/// A reduction of gradients on its own stream.
struct ReductionSpan {
  std::int64_t stage = 0;
  double begin_s = 0, end_s = 0;
};

struct StageTail {
  double end_s = 0;     // gradients summed, from the start of the step
  double reduce_s = 0;  // of it beyond the last backward
  double gather_s = 0;  // parameters, as far as nothing hides it
  double norm_s = 0;    // of the gradient
  double optimizer_s = 0;
  CommunicationBytes sent;
};

/// Parameters are gathered in every pass and gradients summed in every micro-batch.
bool gathers_layers(const Plan& plan, const Stack& stack);
/// They go from and to buffers that NCCL knows, which takes few SMs inside one NVLink domain.
bool registers_buffers(const Plan& plan, const profiles::Profile& profile, const Layout& layout);

class DataParallel {
 public:
  DataParallel(const Model& model, const Plan& plan, const Stack& stack, BodyCosts& costs);

  /// Of a pipeline's stage that ends computing at `end_s`.
  StageTail tail(std::int64_t stage, const std::vector<ReducedChunk>& chunks, double end_s);

  /// Reductions of tails that follow are listed there.
  void record(std::vector<ReductionSpan>* reductions) { reductions_ = reductions; }

  bool per_layer() const { return per_layer_; }
  /// Gathers of `parameters`, and the sum of their gradients.
  double gather_s(double parameters, double expert_parameters = 0);
  double reduce_s(double parameters, double expert_parameters = 0);
  /// Of a micro-batch with parameters that are not sharded: weights cast by autocast, and gradients
  /// that no kernel adds up copied to where they are reduced. 0 for software that does neither.
  double cast_weights_s(double parameters) const;
  double copied_gradients_s(double parameters) const;
  /// By what kernels stretch a collective of the replicas beside them.
  double stretched() const { return stretched_; }
  /// What a rank sends for parameters that are sharded over `group` and trained; frozen ones are
  /// gathered and have no gradient.
  CommunicationBytes sent_for(CommGroup group, double trained, double frozen) const;

 private:
  void find_contention();
  double buckets(std::int64_t stage, double parameters) const;
  void reduce(std::int64_t stage, const std::vector<ReducedChunk>& chunks, StageTail& tail);
  void note(std::int64_t stage, double begin_s, double end_s);
  void gather(std::int64_t stage, const std::vector<ReducedChunk>& chunks, StageTail& tail);

  const Model& model_;
  const Plan& plan_;
  const Stack& stack_;
  BodyCosts& costs_;
  bool per_layer_ = false, sharded_ = false, overlap_reduce_ = false, overlap_gather_ = false;
  bool casts_weights_ = false, copies_gradients_ = false;
  double stretched_ = 1, lost_share_ = 0;  // lost_share_: of passes beside a collective
  std::vector<ReductionSpan>* reductions_ = nullptr;
  double gradient_bytes_ = 4, parameter_bytes_ = 2;
  double vocabulary_ = 0;                      // elements of its table
  double whole_bytes_ = 0, copied_bytes_ = 0;  // where whole gradients are summed (0: they are not)
};

}  // namespace shardwright::sim
