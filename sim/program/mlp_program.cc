// SPDX-License-Identifier: Apache-2.0
// The second half of a layer: norm, gate and up, activation, down projection, residual.
#include "sim/program/unit_programs.h"

namespace shardwright::sim {

using enum Tensor;

namespace {

std::vector<Product> input_products(const ProgramWriter& w) {
  const Model& m = w.model();
  const std::int64_t ffn = w.shape().ffn;
  const auto product = [&](OpKind kind, Weight weight, std::int64_t n, Tensor out) {
    return Product{kind, weight,   n,       m.hidden,  w.gathered_norm(true),
                   out,  kDGateUp, kDNorm2, m.mlp_bias};
  };
  if (w.fused_gate_up())
    return {product(OpKind::kGateUpProjection, Weight::kGateUp, 2 * ffn, kGateUp)};
  std::vector<Product> products;
  if (m.gated_mlp) products.push_back(product(OpKind::kGateProjection, Weight::kGate, ffn, kGate));
  products.push_back(product(OpKind::kUpProjection, Weight::kUp, ffn, kUp));
  return products;
}

Product down_product(const ProgramWriter& w) {
  const bool apart = w.adds_residual() || w.has_post_norms();
  return {OpKind::kDownProjection,
          Weight::kDown,
          w.model().hidden,
          w.shape().ffn,
          kActivationOut,
          apart ? Operand(kDown) : of_next_unit(kX),
          w.has_post_norms() ? w.post_norm_gradient(true) : of_next_unit(kDX),
          kDActivation,
          w.model().mlp_bias};
}

/// What the activation reads: gate and up in one, both, or up alone.
Operand activation_input(const ProgramWriter& w) {
  return w.fused_gate_up() ? kGateUp : kUp;
}
Operand separate_gate(const ProgramWriter& w) {
  return w.fused_gate_up() || !w.model().gated_mlp ? kNone : kGate;
}

}  // namespace

void mlp_forward(const ProgramWriter& w, Ops& list) {
  list.push_back(w.norm(true, Weight::kNorm2));
  w.column_forward(list, input_products(w), true, w.gathers());
  list.push_back(w.elementwise(
      OpKind::kActivation, w.activation(), w.elements(w.shape().ffn), false,
      {activation_input(w), separate_gate(w)},
      {kActivationOut, w.existing(kActivationSaved0), w.existing(kActivationSaved1)}));
  w.row_forward(list, down_product(w));
  if (w.has_post_norms()) {
    list.push_back(w.post_norm(true, false));
  } else if (w.adds_residual()) {
    list.push_back(w.elementwise(OpKind::kResidual, w.stack().residual,
                                 w.sharded_elements(w.model().hidden), false, {kXMid, kDown},
                                 {of_next_unit(kX)}));
  } else {
    add_input(list.back(), kXMid);
  }
}

void mlp_backward(const ProgramWriter& w, Ops& list) {
  if (w.has_post_norms()) list.push_back(w.post_norm(true, true));
  w.row_backward(list, down_product(w), w.gathers());
  list.push_back(w.elementwise(OpKind::kActivation, w.activation(), w.elements(w.shape().ffn), true,
                               {kDActivation, activation_input(w), separate_gate(w),
                                w.existing(kActivationSaved0), w.existing(kActivationSaved1)},
                               {kDGateUp}));
  w.column_backward(list, input_products(w), true, w.stack().parallel.userbuffers.fc1_reduce_sms);
  list.push_back(w.norm_backward(true, Weight::kNorm2, w.norm_gradient(true)));
  w.add_residual_gradient(list, of_next_unit(kDX), kDXMid);
}

}  // namespace shardwright::sim
