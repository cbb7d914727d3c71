// SPDX-License-Identifier: Apache-2.0
// Attention in the first half of a layer: query, key and value, positions, attention, output
// projection.
//
// Stacks differ in what is packed. With packed heads (kQkv) norm and RoPE of heads work in place,
// so what backward needs of them is put aside; otherwise query, key and value are tensors of their
// own, and heads that share keys may get copies of them (repeats_heads).
#include "sim/program/real.h"
#include "sim/program/unit_programs.h"

namespace shardwright::sim {

using enum Tensor;

namespace {

/// Query and key elements of all tokens.
double query_and_key(const ProgramWriter& w) {
  return w.elements(w.shape().q_dim() + w.shape().kv_dim());
}

/// Of keys and values, where one product makes both once.
std::int64_t key_value_rows(const ProgramWriter& w) {
  return (w.model().values_are_keys ? 1 : 2) * w.shape().kv_dim();
}

/// With those of the gate beside them.
std::int64_t query_rows(const ProgramWriter& w) {
  return (w.model().attention_gate ? 2 : 1) * w.shape().q_dim();
}

std::vector<Product> qkv_products(const ProgramWriter& w) {
  const RankShape& s = w.shape();
  const bool bias = w.model().qkv_bias;
  const Operand in = w.gathered_norm(false);
  if (w.fused_qkv()) {
    return {{OpKind::kQkvProjection, Weight::kQkv, query_rows(w) + key_value_rows(w), s.hidden, in,
             kQkv, kDQkv, kDNorm1, bias}};
  }
  const bool changed_later = w.has_rope() || w.has_qk_norm();
  const auto product = [&](OpKind kind, Weight weight, std::int64_t n, Tensor out) {
    return Product{kind, weight, n, s.hidden, in, out, kDQkv, kDNorm1, bias};
  };
  std::vector<Product> products = {
      product(OpKind::kQProjection, Weight::kQuery, query_rows(w), changed_later ? kQRaw : kQ),
      product(OpKind::kKProjection, Weight::kKey, s.kv_dim(), changed_later ? kKRaw : kK)};
  if (!w.model().values_are_keys)
    products.push_back(product(OpKind::kVProjection, Weight::kValue, s.kv_dim(), kV));
  return products;
}

Product output_product(const ProgramWriter& w) {
  const Model& m = w.model();
  const Operand plain = m.attention_gate || m.head_gate ? kGatedAttention : kAttentionOut;
  return {OpKind::kOutputProjection,
          Weight::kOutput,
          m.hidden,
          w.shape().attention_out_dim(),
          w.narrows_inputs() ? Operand(kAttentionCast) : plain,
          w.adds_residual() || w.has_post_norms() ? kProjected : kXMid,
          first_half_gradient(w),
          kDAttention,
          m.attention_out_bias};
}

/// What attention puts out times the sigmoid of its gate, of every channel (Qwen3-Next) or head
/// (Ling 3): two matrices read, one written; backward reads the gradient beside them and writes
/// two.
Op gate(const ProgramWriter& w, bool backward) {
  const double matrices = w.model().head_gate ? (backward ? 3 : 2) : backward ? 5 : 3;
  Op op = ProgramWriter::memory(
      OpKind::kGate, matrices * f(w.width()) * w.elements(w.shape().attention_out_dim()), 1, 1.0,
      {kAttentionOut, kAttentionGate, backward ? Operand(kDAttention) : Operand()},
      {backward ? Operand() : Operand(kGatedAttention)});
  if (backward) op.phase = Phase::kBackward;
  return op;
}

Product head_gate_product(const ProgramWriter& w) {
  return {OpKind::kGate,          Weight::kHeadGate, w.shape().heads, w.shape().hidden,
          w.gathered_norm(false), kAttentionGate,    kDAttention,     kDNorm1};
}

/// Values, too, where they are normalised.
double normed_heads(const ProgramWriter& w) {
  return query_and_key(w) + (w.model().value_norm ? w.elements(w.shape().kv_dim()) : 0.0);
}

Op qk_norm_forward(const ProgramWriter& w) {
  const KernelGroup& norm = w.stack().norm;
  const double elements = normed_heads(w);
  Op op;
  if (w.fused_qkv()) {
    op =
        w.elementwise(OpKind::kQkNorm, norm, elements, false, {kQkv}, {kQRaw, kKRaw, kQkNormSaved});
    // Works in place, so the heads as they were are put aside: one more element written each.
    op.work.bytes += static_cast<Bytes>(elements * f(w.width()));
  } else {
    const bool in_place = w.has_rope();
    op = w.elementwise(
        OpKind::kQkNorm, norm, elements, false, {kQRaw, kKRaw},
        {in_place ? kNone : kQ, in_place ? kNone : kK, w.model().values_are_keys ? kV : kNone});
  }
  op.weight = Weight::kQkNorm;
  return op;
}

Op qk_norm_backward(const ProgramWriter& w) {
  Op op = w.elementwise(OpKind::kQkNorm, w.stack().norm, normed_heads(w), true,
                        {kDQkv, kQRaw, kKRaw, w.fused_qkv() ? kQkNormSaved : kNone});
  op.weight = Weight::kQkNorm;
  return op;
}

Op rope_forward(const ProgramWriter& w) {
  if (w.fused_qkv()) return w.elementwise(OpKind::kRope, w.rope(), query_and_key(w), false, {kQkv});
  return w.elementwise(OpKind::kRope, w.rope(), query_and_key(w), false, {kQRaw, kKRaw}, {kQ, kK});
}

/// Copies of shared key and value heads, or the sum over those copies.
Op repeat(const ProgramWriter& w, OpKind kind, std::initializer_list<Operand> in,
          std::initializer_list<Operand> out) {
  const double moved = 2 * f(w.width()) * w.elements(w.shape().kv_dim() + w.shape().q_dim());
  return ProgramWriter::memory(kind, moved, 2, w.stack().copies.copy, in, out);
}

}  // namespace

void attention_forward(const ProgramWriter& w, Ops& list) {
  if (w.is_latent()) {
    latent_forward(w, list);
  } else {
    const std::size_t first = list.size();
    w.column_forward(list, qkv_products(w), false, w.gathers());
    for (std::size_t i = first; w.model().attention_gate && i < list.size(); ++i) {
      const OpKind kind = list[i].kind;
      if (kind == OpKind::kQkvProjection || kind == OpKind::kQProjection)
        add_output(list[i], kAttentionGate);
    }
  }
  if (w.has_qk_norm()) list.push_back(qk_norm_forward(w));
  if (w.has_rope()) list.push_back(rope_forward(w));
  if (w.repeats_heads()) {
    list.push_back(repeat(w, OpKind::kCopyOut,
                          {w.fused_qkv() ? kQkv : kK, w.fused_qkv() ? kNone : kV},
                          {kKRepeated, kVRepeated}));
  }
  attention_core(w, list, false);
  if (w.model().head_gate) list.push_back(w.product_forward(head_gate_product(w)));
  if (w.model().attention_gate || w.model().head_gate) list.push_back(gate(w, false));
  // What the product's cast (low_precision.h) writes is kept beside the output.
  if (w.narrows_inputs())
    list.push_back(
        ProgramWriter::make(OpKind::kQuantize, Phase::kForward, {kAttentionOut}, {kAttentionCast}));
  first_half_ends(w, list, output_product(w));
}

Operand first_half_gradient(const ProgramWriter& w) {
  return w.has_post_norms()            ? w.post_norm_gradient(false)
         : w.model().parallel_residual ? of_next_unit(kDX)
                                       : Operand(kDXMid);
}

void first_half_ends(const ProgramWriter& w, Ops& list, const Product& product) {
  w.row_forward(list, product);
  if (w.has_post_norms()) {
    list.push_back(w.post_norm(false, false));
  } else if (w.adds_residual()) {
    list.push_back(w.elementwise(OpKind::kResidual, w.stack().residual,
                                 w.sharded_elements(w.model().hidden), false, {kX, kProjected},
                                 {kXMid}));
  } else {
    add_input(list.back(), kX);
  }
}

void first_half_begins_backward(const ProgramWriter& w, Ops& list, const Product& product) {
  if (w.has_post_norms()) list.push_back(w.post_norm(false, true));
  w.row_backward(list, product, w.gathers());
}

void attention_backward(const ProgramWriter& w, Ops& list) {
  first_half_begins_backward(w, list, output_product(w));
  if (w.model().attention_gate || w.model().head_gate) list.push_back(gate(w, true));
  if (w.model().head_gate) {
    list.push_back(w.input_gradient(head_gate_product(w)));
    list.push_back(w.weight_gradient_of(head_gate_product(w)));
  }
  attention_core(w, list, true);
  if (w.repeats_heads()) {
    list.push_back(repeat(w, OpKind::kAccumulate, {kDQkv}, {}));
    list.back().temporary_bytes =
        static_cast<Bytes>(2 * f(w.width()) * w.elements(w.shape().q_dim()));
  }
  if (w.has_rope()) {
    list.push_back(w.elementwise(OpKind::kRope, w.rope(), query_and_key(w), true, {kDQkv}));
  }
  if (w.has_qk_norm()) list.push_back(qk_norm_backward(w));
  if (w.is_latent()) {
    latent_backward(w, list);
  } else {
    w.column_backward(list, qkv_products(w), false, w.stack().parallel.userbuffers.qkv_reduce_sms);
  }
}

}  // namespace shardwright::sim
