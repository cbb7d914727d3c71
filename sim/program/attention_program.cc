// SPDX-License-Identifier: Apache-2.0
// The first half of a layer: norm, query, key and value, positions, attention, output projection,
// residual.
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

/// With those of the gate beside them.
std::int64_t query_rows(const ProgramWriter& w) {
  return (w.model().attention_gate ? 2 : 1) * w.shape().q_dim();
}

std::vector<Product> qkv_products(const ProgramWriter& w) {
  const RankShape& s = w.shape();
  const bool bias = w.model().qkv_bias;
  const Operand in = w.gathered_norm(false);
  if (w.fused_qkv()) {
    return {{OpKind::kQkvProjection, Weight::kQkv, query_rows(w) + 2 * s.kv_dim(), s.hidden, in,
             kQkv, kDQkv, kDNorm1, bias}};
  }
  const bool changed_later = w.has_rope() || w.has_qk_norm();
  const auto product = [&](OpKind kind, Weight weight, std::int64_t n, Tensor out) {
    return Product{kind, weight, n, s.hidden, in, out, kDQkv, kDNorm1, bias};
  };
  return {product(OpKind::kQProjection, Weight::kQuery, query_rows(w), changed_later ? kQRaw : kQ),
          product(OpKind::kKProjection, Weight::kKey, s.kv_dim(), changed_later ? kKRaw : kK),
          product(OpKind::kVProjection, Weight::kValue, s.kv_dim(), kV)};
}

Product output_product(const ProgramWriter& w) {
  const Model& m = w.model();
  const Operand plain = m.attention_gate ? kGatedAttention : kAttentionOut;
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

/// What attention puts out times the sigmoid of its gate (Qwen3-Next): two matrices read, one
/// written; backward reads the gradient beside them and writes two.
Op gate(const ProgramWriter& w, bool backward) {
  const double matrices = backward ? 5 : 3;
  Op op = ProgramWriter::memory(
      OpKind::kGate, matrices * f(w.width()) * w.elements(w.shape().q_dim()), 1, 1.0,
      {kAttentionOut, kAttentionGate, backward ? Operand(kDAttention) : Operand()},
      {backward ? Operand() : Operand(kGatedAttention)});
  if (backward) op.phase = Phase::kBackward;
  return op;
}

Op qk_norm_forward(const ProgramWriter& w) {
  const KernelGroup& norm = w.stack().norm;
  const double elements = query_and_key(w);
  Op op;
  if (w.fused_qkv()) {
    op =
        w.elementwise(OpKind::kQkNorm, norm, elements, false, {kQkv}, {kQRaw, kKRaw, kQkNormSaved});
    // Works in place, so the heads as they were are put aside: one more element written each.
    op.work.bytes += static_cast<Bytes>(elements * f(w.width()));
  } else {
    const bool in_place = w.has_rope();
    op = w.elementwise(OpKind::kQkNorm, norm, elements, false, {kQRaw, kKRaw},
                       {in_place ? kNone : kQ, in_place ? kNone : kK});
  }
  op.weight = Weight::kQkNorm;
  return op;
}

Op qk_norm_backward(const ProgramWriter& w) {
  Op op = w.elementwise(OpKind::kQkNorm, w.stack().norm, query_and_key(w), true,
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
  list.push_back(w.norm(false, Weight::kNorm1));
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
  if (w.model().attention_gate) list.push_back(gate(w, false));
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
  if (w.model().attention_gate) list.push_back(gate(w, true));
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
    list.push_back(w.norm_backward(false, Weight::kNorm1, kDNorm1));
  } else {
    w.column_backward(list, qkv_products(w), false, w.stack().parallel.userbuffers.qkv_reduce_sms);
    list.push_back(w.norm_backward(false, Weight::kNorm1, w.norm_gradient(false)));
  }
  w.add_residual_gradient(list, kDXMid, kDX);
}

}  // namespace shardwright::sim
