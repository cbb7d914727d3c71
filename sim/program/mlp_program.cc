// SPDX-License-Identifier: Apache-2.0
// The second half of a layer: norm, gate and up, activation, down projection, residual.
#include <algorithm>

#include "sim/program/unit_programs.h"

namespace shardwright::sim {

using enum Tensor;

namespace {

std::vector<Product> input_products(const ProgramWriter& w) {
  const Model& m = w.model();
  const auto product = [&](OpKind kind, Weight weight, std::int64_t n, Tensor out) {
    return Product{kind, weight, n, m.hidden, kNorm2Out, out, kDGateUp, kDNorm2, m.mlp_bias};
  };
  if (w.fused_gate_up())
    return {product(OpKind::kGateUpProjection, Weight::kGateUp, 2 * m.ffn, kGateUp)};
  std::vector<Product> products;
  if (m.gated_mlp)
    products.push_back(product(OpKind::kGateProjection, Weight::kGate, m.ffn, kGate));
  products.push_back(product(OpKind::kUpProjection, Weight::kUp, m.ffn, kUp));
  return products;
}

Product down_product(const ProgramWriter& w) {
  const bool apart = w.adds_residual() || w.has_post_norms();
  return {OpKind::kDownProjection,
          Weight::kDown,
          w.model().hidden,
          w.model().ffn,
          kActivationOut,
          apart ? Operand(kDown) : of_next_unit(kX),
          w.has_post_norms() ? Operand(kDNorm2) : of_next_unit(kDX),
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

void mlp_forward(const ProgramWriter& w, Program& list) {
  list.push_back(w.norm(Phase::kForward, true, false, Weight::kNorm2));
  for (const Product& p : input_products(w)) list.push_back(w.product_forward(p));
  list.push_back(w.elementwise(
      OpKind::kActivation, Phase::kForward, w.activation(), w.elements(w.model().ffn), false,
      {activation_input(w), separate_gate(w)},
      {kActivationOut, w.existing(kActivationSaved0), w.existing(kActivationSaved1)}));
  list.push_back(w.product_forward(down_product(w)));
  if (w.has_post_norms()) {
    list.push_back(w.post_norm(true, false));
  } else if (w.adds_residual()) {
    list.push_back(w.elementwise(OpKind::kResidual, Phase::kForward, w.stack().residual,
                                 w.elements(w.model().hidden), false, {kXMid, kDown},
                                 {of_next_unit(kX)}));
  } else {
    list.back().op.in[1] = kXMid;
  }
}

void mlp_backward(ProgramWriter& w, Program& list) {
  if (w.has_post_norms()) list.push_back(w.post_norm(true, true));
  w.product_backward(list, down_product(w), false);
  list.push_back(w.elementwise(OpKind::kActivation, Phase::kBackward, w.activation(),
                               w.elements(w.model().ffn), true,
                               {kDActivation, activation_input(w), separate_gate(w),
                                w.existing(kActivationSaved0), w.existing(kActivationSaved1)},
                               {kDGateUp}));
  std::vector<Product> inputs = input_products(w);
  std::reverse(inputs.begin(), inputs.end());
  for (std::size_t i = 0; i < inputs.size(); ++i) w.product_backward(list, inputs[i], i > 0);
  list.push_back(w.norm(Phase::kBackward, true, true, Weight::kNorm2));
  w.add_residual_gradient(list, of_next_unit(kDX), kDXMid);
}

}  // namespace shardwright::sim
