// SPDX-License-Identifier: Apache-2.0
// What the programs of units are written with: sizes of tensors, and operations with their work.
//
// A Product is one GEMM of the forward pass; product_backward writes what follows from it
// in backward. Elementwise kernels take their traffic, launches and temporaries from the stack.
// Read next: attention_program.cc, mlp_program.cc, head_program.cc (what is written with it).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/stack.h"
#include "sim/core/tensor.h"
#include "sim/program/gradient_type.h"
#include "sim/program/unit_program.h"

namespace shardwright::sim {

/// y = x W^T and its gradients.
struct Product {
  OpKind kind = OpKind::kHostWork;
  Weight weight = Weight::kNone;
  std::int64_t n = 0, k = 0;  // output and input features
  Operand in;                 // [T, k]
  Operand out;                // [T, n]
  Operand d_out;              // [T, n]
  Operand d_in;               // [T, k]
  bool bias = false;
};

class ProgramWriter {
 public:
  /// Sizes every tensor; keeps the references.
  ProgramWriter(const Model& model, const Plan& plan, const Stack& stack, ProgramTensors& tensors);

  const Model& model() const { return model_; }
  const Plan& plan() const { return plan_; }
  const Stack& stack() const { return stack_; }
  std::int64_t tokens() const { return tokens_; }
  /// Bytes of an element of the compute type.
  std::int64_t width() const { return width_; }
  /// Bytes of an element of a weight gradient.
  std::int64_t gradient_width() const { return bytes_of(gradient_dtype(plan_, stack_)); }
  /// Elements of `columns` a token.
  double elements(std::int64_t columns) const { return static_cast<double>(tokens_ * columns); }

  // Facts of model and stack together.
  bool fused_qkv() const { return model_.fused_qkv || stack_.fused_qkv; }
  bool fused_gate_up() const {
    return model_.gated_mlp && (model_.fused_gate_up || stack_.fused_gate_up);
  }
  bool repeats_heads() const { return stack_.repeats_kv_heads && model_.kv_heads < model_.heads; }
  bool has_rope() const { return model_.position == Position::kRope; }
  const KernelGroup& activation() const {
    return model_.gated_mlp ? stack_.gated_activation : stack_.plain_activation;
  }
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

  const ProgramTensor& tensor(Tensor tensor) const { return tensors_[tensor]; }
  void size(Tensor tensor, double bytes, MemoryCategory category = MemoryCategory::kActivations);
  /// The tensor, where this stack has it at all.
  Operand existing(Tensor tensor) const;

  // Operations; operands without a tensor are left out.
  static ProgramOp make(OpKind kind, Phase phase, std::initializer_list<Operand> in,
                        std::initializer_list<Operand> out);
  static Work memory_work(double bytes, int kernels, double efficiency);
  Work gemm_work(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t times = 1) const;
  /// Of W[n, k] from `tokens` tokens at a time; all but the first time adds to what is there.
  /// Work::bytes as sim/cost/result_traffic.h reads it.
  Work weight_gradient_work(std::int64_t n, std::int64_t k, std::int64_t tokens,
                            std::int64_t times = 1) const;
  /// Stacks count the traffic of 2-byte elements.
  double traffic(double bytes) const { return bytes * static_cast<double>(width_) / 2; }
  ProgramOp elementwise(OpKind kind, Phase phase, const KernelGroup& group, double elements,
                        bool backward, std::initializer_list<Operand> in,
                        std::initializer_list<Operand> out) const;
  /// A layer's first or second norm; the head's is written as a first one.
  ProgramOp norm(Phase phase, bool second, bool backward, Weight weight) const;
  /// The norm behind attention (or, `second`, the MLP). Its input's gradient waits where that of
  /// the norm before it comes later.
  ProgramOp post_norm(bool second, bool backward) const;
  ProgramOp product_forward(const Product& product) const;
  /// Appends input gradient, weight gradient and, with a bias, its reduction. Later products that
  /// share an input add their input gradient to the first one's.
  void product_backward(std::vector<ProgramOp>& list, const Product& product,
                        bool adds_to_input_gradient);
  /// `into` += `from`, on its own or in the norm before it, which then reads `from`.
  void add_residual_gradient(std::vector<ProgramOp>& list, Operand from, Operand into) const;
  /// Numbers the weight gradients of the next unit from 0.
  void begin_weight_gradients() { weight_gradients_ = 0; }
  /// Static stacks write weight gradients straight into the strategy's gradient buffer.
  void size_weight_gradient(Tensor slot, std::int64_t elements);

 private:
  void size_layer();
  void size_saved();

  const Model& model_;
  const Plan& plan_;
  const Stack& stack_;
  ProgramTensors& tensors_;
  std::int64_t tokens_;
  std::int64_t width_;
  int weight_gradients_ = 0;
};

}  // namespace shardwright::sim
