// SPDX-License-Identifier: Apache-2.0
// What the programs of units are written with: the tensors of a rank with their sizes, and
// operations with their work and operands.
//
// A layer, the embedding and the head each have a forward list, a list for both gradients in the
// order of the host, and, where a layer is checkpointed, what it runs again. GEMMs have the shapes
// that tensor parallelism leaves, elementwise kernels the tokens that sequence parallelism leaves;
// collectives of the tensor, context and expert groups stand in their place with how the software
// hides them. Sources: Megatron-LM core/tensor_parallel/layers.py (forward and
// LinearWithGradAccumulationAndAsyncCommunication.backward), TransformerEngine
// pytorch/module/base.py (userbuffers), PyTorch's async tensor parallelism.
//
// A Product is one GEMM of the forward pass; its gradients follow from it. Elementwise kernels take
// their traffic, launches and temporaries from the stack. What an operation asks of a device or
// communicator is what its Work and Collective say; nothing here names a time.
// Read next: attention_program.cc (what is written with it),
// list_pass.h (the streams of a pass).
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "sim/core/cluster.h"
#include "sim/core/local_shape.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/schedule.h"
#include "sim/core/stack.h"
#include "sim/core/tensor.h"
#include "sim/program/unit_program.h"

namespace shardwright::sim {

/// y = x W^T and its gradients.
struct Product {
  OpKind kind = OpKind::kHostWork;
  Weight weight = Weight::kNone;
  std::int64_t n = 0, k = 0;  // output and input features on this rank
  Operand in;                 // [T, k]
  Operand out;                // [T, n]
  Operand d_out;              // [T, n]
  Operand d_in;               // [T, k]
  bool bias = false;
};

/// Appends to the first that are free.
void add_input(Op& op, const Operand& operand);
void add_output(Op& op, const Operand& operand);

class ProgramWriter {
 public:
  /// Sizes every tensor; keeps the references but `gpu`, which says how GEMMs in fp8 want their
  /// operands: without one, with a transposed copy.
  ProgramWriter(const Model& model, const Plan& plan, const Stack& stack, const Gpu& gpu = {});

  const Model& model() const { return model_; }
  const Plan& plan() const { return plan_; }
  const Stack& stack() const { return stack_; }
  const RankShape& shape() const { return shape_; }
  std::int64_t tokens() const { return shape_.tokens; }
  /// Bytes of an element of the compute type.
  std::int64_t width() const { return width_; }
  /// Bytes of an element of a weight gradient.
  std::int64_t gradient_width() const;
  /// Elements of `columns` a token, and of the tokens between the matrices.
  double elements(std::int64_t columns) const;
  double sharded_elements(std::int64_t columns) const;
  double gathered_bytes() const;

  // Facts of model and stack together.
  bool fused_qkv() const { return model_.fused_qkv || stack_.fused_qkv; }
  bool fused_gate_up() const {
    return model_.gated_mlp && (model_.fused_gate_up || stack_.fused_gate_up);
  }
  bool repeats_heads() const;
  bool is_latent() const { return model_.latent.kv_rank > 0; }
  bool has_rope() const { return model_.position == Position::kRope && !is_latent(); }
  bool has_qk_norm() const { return model_.qk_norm || model_.qk_norm_whole; }
  bool eager_attention() const {
    return plan_.attention == AttentionKind::kEager || !stack_.parallel.fused_attention;
  }
  const KernelGroup& activation() const {
    return model_.gated_mlp ? stack_.gated_activation : stack_.plain_activation;
  }
  /// Models with sinks turn by YaRN.
  const KernelGroup& rope() const;
  /// Whether the residual is added by a kernel of its own, not by the product before it.
  bool adds_residual() const { return stack_.residual.forward_kernels > 0; }
  /// Whether norms behind attention and MLP, which add the residual, are operations of their own
  /// (gemma2). Stacks of frameworks were fitted without them.
  bool has_post_norms() const {
    return model_.norms_per_layer == 4 && stack_.memory == MemoryManager::kStatic;
  }
  /// Statistics that a half of a layer keeps for each token, in those of one norm: means beside
  /// deviations, and those of a norm behind it.
  int statistics_kept() const;
  TensorOverlap tensor_overlap() const { return overlap_; }
  ContextComm context_comm() const { return context_; }
  /// Products in fp8 read operands with the inner dimension last only, so each has a transpose.
  bool transposes_fp8() const { return transposes_fp8_; }
  /// What they reach in MXFP8 of those with one scale a tensor.
  double mxfp8_gemm_share() const { return mxfp8_gemm_share_; }
  /// Inputs of column-parallel products stay gathered until backward.
  bool keeps_gathered() const {
    return stack_.parallel.tensor.keeps_gathered_inputs && shape_.sequence_parallel;
  }
  /// Column-parallel products of one input gather it each for itself.
  bool gathers_each() const {
    return stack_.parallel.tensor.gathers_each_product && shape_.sequence_parallel;
  }
  /// A compiler finds the overlap of tensor parallelism, pattern by pattern.
  bool narrows_inputs() const;

  const ProgramTensor& tensor(Tensor tensor) const { return tensors_[tensor]; }
  const ProgramTensors& tensors() const { return tensors_; }
  /// The tensor, where this stack has it at all.
  Operand existing(Tensor tensor) const;
  /// What a column-parallel product reads of a norm's output, and what its gradient becomes.
  Operand norm_output(bool second) const;
  Operand gathered_norm(bool second) const;
  Operand norm_gradient(bool second) const;

  // Operations; operands without a tensor are left out.
  static Op make(OpKind kind, Phase phase, std::initializer_list<Operand> in,
                 std::initializer_list<Operand> out);
  static Op memory(OpKind kind, double bytes, int kernels, double efficiency,
                   std::initializer_list<Operand> in = {}, std::initializer_list<Operand> out = {});
  /// y[m, n] = x[m, k] W, `times` times. `kind` tells which.
  Op product(OpKind kind, std::int64_t m, std::int64_t n, std::int64_t k,
             std::int64_t times = 1) const;
  /// The gradient of a weight [n, k] from `m` tokens at a time; all but the first time adds to what
  /// is there.
  Op weight_gradient(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t times = 1) const;
  /// Stacks count the traffic of 2-byte elements.
  double traffic(double bytes) const { return bytes * static_cast<double>(width_) / 2; }
  Op elementwise(OpKind kind, const KernelGroup& group, double elements, bool backward,
                 std::initializer_list<Operand> in = {},
                 std::initializer_list<Operand> out = {}) const;
  Op collective(CommGroup group, Collective kind, double bytes, Overlap overlap = Overlap::kNone,
                std::initializer_list<Operand> in = {},
                std::initializer_list<Operand> out = {}) const;
  /// Of the tensor ranks, which nothing is beside.
  Op tensor_collective(Collective kind, double bytes, std::initializer_list<Operand> in,
                       std::initializer_list<Operand> out = {}) const {
    return collective(CommGroup::kTensor, kind, bytes, Overlap::kNone, in, out);
  }
  /// A layer's first or second norm; the head's is written as a first one.
  Op norm(bool second, Weight weight) const;
  Op norm_backward(bool second, Weight weight, Operand gradient) const;
  /// The norm behind attention (or, `second`, the MLP), and the gradient of its input. A product
  /// reads that for its weights, perhaps in a later pass, so nothing else of the unit lies there.
  Op post_norm(bool second, bool backward) const;
  Operand post_norm_gradient(bool second) const;
  Op product_forward(const Product& product) const;
  Op input_gradient(const Product& product) const;
  Op weight_gradient_of(const Product& product) const;

  /// Column-parallel products of a norm's output: gathered before the first one, where sequence
  /// parallelism divides it.
  void column_forward(Ops& list, const std::vector<Product>& products, bool second,
                      Overlap overlap) const;
  /// Their gradients. The input, where it is not kept, is gathered again beside the gradient of the
  /// input, whose sum runs beside the gradient of the weight; with userbuffers by `sum_sms` SMs,
  /// unless 0.
  void column_backward(Ops& list, const std::vector<Product>& products, bool second,
                       int sum_sms) const;
  /// The sum over tensor ranks of what each made of `from`.
  Op reduction(Operand from, Operand to, Overlap overlap) const;
  /// A row-parallel product, and the reduce-scatter or all-reduce of what the tensor ranks made.
  void row_forward(Ops& list, const Product& product) const;
  /// Of what any operation made of its part of the channels.
  void reduce_after(Ops& list, Op op) const;
  /// The gradient of its output is gathered first and serves both.
  void row_backward(Ops& list, const Product& product, Overlap overlap) const;
  /// `product`, after a gather of its input `from` to `to` where sequence parallelism divides it;
  /// the gather runs inside with Overlap::kInside.
  void gather_before(Ops& list, Op product, Operand from, Operand to, Overlap overlap) const;
  /// How the input of a column-parallel product, or the gradient of a row-parallel one, is
  /// gathered.
  Overlap gathers() const;
  /// The unit's norms have made gradients from a part of the tokens or heads, which the tensor
  /// ranks add up. Frameworks do so once a step; here every micro-batch's is whole, so that sums
  /// over micro-batches and ranks come in the order of one rank's.
  void sum_norm_gradients(Ops& list, const std::vector<WeightShape>& weights) const;
  bool sums_norm_gradients() const;
  /// Of the weights of key and value heads that several tensor ranks hold: each has what its own
  /// query heads make of them.
  void sum_key_value_gradients(Ops& list) const;
  /// `into` += `from`, on its own or in the norm before it, which then reads `from`.
  void add_residual_gradient(Ops& list, Operand from, Operand into) const;

  // Units.
  UnitProgram embedding() const;
  UnitProgram layer(bool recomputed, LayerKind kind = {}) const;
  UnitProgram head() const;
  /// Before the layer of a module of multi-token prediction: a product of the hidden state beside
  /// the next token's embedding.
  UnitProgram prediction_projection() const;

 private:
  void size(Tensor tensor, double bytes, MemoryCategory category = MemoryCategory::kActivations);
  void size_layer();
  void size_recurrence();
  void size_saved();
  void size_loss();
  void size_parallel();
  void product_backward(Ops& list, const Product& product, bool adds_to_input_gradient) const;
  void add_bias_gradient(Ops& list, const Product& product) const;
  /// Parts of several sequences, out of what was gathered or into what will be scattered.
  void copy_parts(Ops& list, OpKind kind, Operand of) const;
  /// `op` writes the unit's weight gradient number `slot`.
  void make_weight_gradient(UnitProgram& unit, Op& op, int slot, std::int64_t elements) const;
  /// Those of GEMMs, in the order of backward.
  void number_weight_gradients(UnitProgram& unit) const;

  const Model& model_;
  const Plan& plan_;
  const Stack& stack_;
  RankShape shape_;
  ProgramTensors tensors_;
  std::int64_t width_;
  TensorOverlap overlap_ = TensorOverlap::kNone;
  ContextComm context_ = ContextComm::kRing;
  double mxfp8_gemm_share_ = 1;
  bool transposes_fp8_ = true;
  bool copies_parts_ = false;
  bool matches_async_ = false;
};

// The halves of a layer and what they are made of, in execution order; each appends to a list.

/// The first half of a layer: norm, what mixes tokens, residual; nothing for Mixer::kNone.
void mixer_forward(const ProgramWriter& w, Ops& list, Mixer mixer);
void mixer_backward(const ProgramWriter& w, Ops& list, Mixer mixer);

/// From the norm's output to the first half's: queries, keys and values, attention, product out.
void attention_forward(const ProgramWriter& w, Ops& list);
void attention_backward(const ProgramWriter& w, Ops& list);

/// The second half: norm, gate and up, activation, down projection, residual.
void mlp_forward(const ProgramWriter& w, Ops& list);
void mlp_backward(const ProgramWriter& w, Ops& list);

/// Queries, keys and values by way of two latent vectors (DeepSeek-V2, multi-head latent
/// attention).
void latent_forward(const ProgramWriter& w, Ops& list);
void latent_backward(const ProgramWriter& w, Ops& list);

/// A recurrence in place of attention; beside it, its output is left apart.
void recurrence_forward(const ProgramWriter& w, Ops& list, bool beside_attention);
void recurrence_backward(const ProgramWriter& w, Ops& list);

/// The end of the first half: `product` and the residual, and what backward begins with.
void first_half_ends(const ProgramWriter& w, Ops& list, const Product& product);
void first_half_begins_backward(const ProgramWriter& w, Ops& list, const Product& product);
/// Of a product in the first half: the gradient of its output.
Operand first_half_gradient(const ProgramWriter& w);

/// Attention itself, over the sequence that context parallel ranks share.
void attention_core(const ProgramWriter& w, Ops& list, bool backward);

}  // namespace shardwright::sim
