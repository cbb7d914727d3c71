// SPDX-License-Identifier: Apache-2.0
// What one rank does for one micro-batch in a part of the model: a list of typed operations.
//
// A layer, the embedding and the head each have a forward list, a list for both gradients in the
// order of the host, and, where a layer is checkpointed, what it runs again. Products have the
// shapes that tensor parallelism leaves, elementwise kernels the tokens that sequence parallelism
// leaves; collectives of the tensor, context and expert groups stand in their place with how the
// software hides them. Sources: Megatron-LM core/tensor_parallel/layers.py (forward and
// LinearWithGradAccumulationAndAsyncCommunication.backward), TransformerEngine
// pytorch/module/base.py (userbuffers), PyTorch's async tensor parallelism.
//
// What each operation asks of a device or communicator is what its Work and Collective say; nothing
// here names a time. list_pass.h makes a pass of a list, sim/memory/stage_memory.h puts bytes to
// what it keeps. What experts add stands in expert_lists.h, what a precision changes in
// low_precision.h.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/cluster.h"
#include "sim/core/local_shape.h"
#include "sim/core/model.h"
#include "sim/core/op.h"
#include "sim/core/plan.h"
#include "sim/core/stack.h"

namespace shardwright::sim {

struct UnitLists {
  Ops forward, recompute, backward;
};

/// Writes operations for a rank: model, plan and stack give every list its sizes.
class ListWriter {
 public:
  /// `gpu` says how GEMMs in fp8 want their operands; without one, with a transposed copy.
  ListWriter(const Model& model, const Plan& plan, const Stack& stack, const Gpu& gpu = {});

  const Model& model() const { return model_; }
  const Plan& plan() const { return plan_; }
  const Stack& stack() const { return stack_; }
  const RankShape& shape() const { return shape_; }
  TensorOverlap tensor_overlap() const { return overlap_; }
  ContextComm context_comm() const { return context_; }
  bool eager_attention() const {
    return plan_.attention == AttentionKind::kEager || !stack_.parallel.fused_attention;
  }
  double width() const { return 2; }  // bytes of an activation
  /// Products in fp8 read operands with the inner dimension last only, so each has a transpose.
  bool transposes_fp8() const { return transposes_fp8_; }
  /// What they reach in MXFP8 of those with one scale a tensor.
  double mxfp8_gemm_share() const { return mxfp8_gemm_share_; }
  /// Inputs of column-parallel products stay gathered until backward.
  bool keeps_gathered() const {
    return stack_.parallel.tensor.keeps_gathered_inputs && shape_.sequence_parallel;
  }

  /// y[m, n] = x[m, k] W. `kind` tells which.
  Op product(OpKind kind, std::int64_t m, std::int64_t n, std::int64_t k) const;
  /// The gradient of a weight [n, k] from `m` tokens.
  Op weight_gradient(std::int64_t m, std::int64_t n, std::int64_t k) const;
  Op elementwise(OpKind kind, const KernelGroup& group, double elements, bool backward) const;
  /// Of the tokens between the matrices.
  Op layer_norm(bool backward) const;
  Op memory(OpKind kind, double bytes, int kernels, double efficiency) const;
  Op collective(CommGroup group, Collective kind, double bytes,
                Overlap overlap = Overlap::kNone) const;

  /// `experts` in place of the MLP.
  UnitLists layer(bool recomputed, bool experts = false) const;
  /// A module of multi-token prediction: a product of the hidden state beside the next token's
  /// embedding, a layer, and the head again.
  UnitLists prediction() const;
  UnitLists embedding() const;
  UnitLists head() const;

  /// x of all tokens for a column-parallel product; nothing with one tensor rank or without
  /// sequence parallelism. Appends the collective, or puts it into the product that follows.
  void gather_before(Ops& list, Op product_op, Overlap overlap) const;
  /// The sum of a row-parallel product: reduce-scatter or all-reduce after it.
  void reduce_after(Ops& list, Op product_op) const;

 private:
  /// How the input of a column-parallel product, or the gradient of a row-parallel one, is
  /// gathered.
  Overlap gathers() const;
  /// Parts of several sequences, out of what was gathered or into what will be scattered.
  void copy_parts(Ops& list, OpKind kind) const;
  void attention_forward(Ops& list) const;
  void attention_backward(Ops& list) const;
  void mlp_forward(Ops& list) const;
  void mlp_backward(Ops& list) const;
  void column_backward(Ops& list, const std::vector<std::int64_t>& columns, int sum_sms) const;
  void row_backward(Ops& list, std::int64_t rows) const;
  void attention_core(Ops& list, bool backward) const;
  double gathered_bytes() const;

  const Model& model_;
  const Plan& plan_;
  const Stack& stack_;
  RankShape shape_;
  TensorOverlap overlap_ = TensorOverlap::kNone;
  ContextComm context_ = ContextComm::kRing;
  double mxfp8_gemm_share_ = 1;
  bool transposes_fp8_ = true;
  bool copies_parts_ = false;
  bool matches_async_ = false;  // the overlap is one of patterns that a compiler finds
};

}  // namespace shardwright::sim
