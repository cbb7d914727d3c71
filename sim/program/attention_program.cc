// SPDX-License-Identifier: Apache-2.0
// The first half of a layer: norm, query, key and value, positions, attention, output projection,
// residual.
//
// Stacks differ in what is packed. With packed heads (kQkv) norm and RoPE of heads work in place,
// so what backward needs of them is put aside; otherwise query, key and value are tensors of their
// own, and heads that share keys may get copies of them (repeats_heads).
#include <algorithm>

#include "sim/core/workspace.h"
#include "sim/program/unit_programs.h"

namespace shardwright::sim {

using enum Tensor;

namespace {

/// Query and key elements of all tokens.
double query_and_key(const ProgramWriter& w) {
  return w.elements(w.model().q_dim() + w.model().kv_dim());
}

std::vector<Product> qkv_products(const ProgramWriter& w) {
  const Model& m = w.model();
  const std::int64_t c = m.hidden;
  if (w.fused_qkv()) {
    return {{OpKind::kQkvProjection, Weight::kQkv, m.q_dim() + 2 * m.kv_dim(), c, kNorm1Out, kQkv,
             kDQkv, kDNorm1, m.qkv_bias}};
  }
  const bool changed_later = w.has_rope() || m.qk_norm;
  const auto product = [&](OpKind kind, Weight weight, std::int64_t n, Tensor out) {
    return Product{kind, weight, n, c, kNorm1Out, out, kDQkv, kDNorm1, m.qkv_bias};
  };
  return {product(OpKind::kQProjection, Weight::kQuery, m.q_dim(), changed_later ? kQRaw : kQ),
          product(OpKind::kKProjection, Weight::kKey, m.kv_dim(), changed_later ? kKRaw : kK),
          product(OpKind::kVProjection, Weight::kValue, m.kv_dim(), kV)};
}

Product output_product(const ProgramWriter& w) {
  const Model& m = w.model();
  const bool apart = w.adds_residual() || w.has_post_norms();
  const Operand d_out = w.has_post_norms()    ? Operand(kDNorm1)
                        : m.parallel_residual ? of_next_unit(kDX)
                                              : Operand(kDXMid);
  return {
      OpKind::kOutputProjection,  Weight::kOutput, m.hidden,    m.q_dim(),           kAttentionOut,
      apart ? kProjected : kXMid, d_out,           kDAttention, m.attention_out_bias};
}

ProgramOp qk_norm_forward(const ProgramWriter& w) {
  const KernelGroup& norm = w.stack().norm;
  const double elements = query_and_key(w);
  ProgramOp p;
  if (w.fused_qkv()) {
    // Works in place, so the heads as they were are put aside: one more element written each.
    p = w.elementwise(OpKind::kQkNorm, Phase::kForward, norm, elements, false, {kQkv},
                      {kQRaw, kKRaw, kQkNormSaved});
    p.op.work.bytes += static_cast<Bytes>(elements * static_cast<double>(w.width()));
  } else {
    const bool in_place = w.has_rope();
    p = w.elementwise(OpKind::kQkNorm, Phase::kForward, norm, elements, false, {kQRaw, kKRaw},
                      {in_place ? kNone : kQ, in_place ? kNone : kK});
  }
  p.op.weight = Weight::kQkNorm;
  return p;
}

ProgramOp qk_norm_backward(const ProgramWriter& w) {
  ProgramOp p =
      w.elementwise(OpKind::kQkNorm, Phase::kBackward, w.stack().norm, query_and_key(w), true,
                    {kDQkv, kQRaw, kKRaw, w.fused_qkv() ? kQkNormSaved : kNone}, {});
  p.op.weight = Weight::kQkNorm;
  return p;
}

ProgramOp rope_forward(const ProgramWriter& w) {
  const KernelGroup& rope = w.stack().rope;
  if (w.fused_qkv()) {
    return w.elementwise(OpKind::kRope, Phase::kForward, rope, query_and_key(w), false, {kQkv}, {});
  }
  return w.elementwise(OpKind::kRope, Phase::kForward, rope, query_and_key(w), false,
                       {kQRaw, kKRaw}, {kQ, kK});
}

/// Copies of shared key and value heads, or the sum over those copies.
Work repeat_work(const ProgramWriter& w) {
  const double moved =
      static_cast<double>(2 * w.width() * w.tokens() * (w.model().kv_dim() + w.model().q_dim()));
  return ProgramWriter::memory_work(moved, 2, w.stack().copies.copy);
}

ProgramOp attention(const ProgramWriter& w, bool backward) {
  const Plan& plan = w.plan();
  const Model& m = w.model();
  const bool flash = plan.attention == AttentionKind::kFlash;
  const Operand q = w.fused_qkv() ? kQkv : kQ;
  const Operand k = w.repeats_heads() ? kKRepeated : w.fused_qkv() ? kNone : kK;
  const Operand v = w.repeats_heads() ? kVRepeated : w.fused_qkv() ? kNone : kV;
  const Operand extra = flash ? kAttentionStats : kProbabilities;
  ProgramOp p = backward
                    ? ProgramWriter::make(OpKind::kAttention, Phase::kBackward,
                                          {q, k, v, kAttentionOut, extra, kDAttention}, {kDQkv})
                    : ProgramWriter::make(OpKind::kAttention, Phase::kForward, {q, k, v},
                                          {kAttentionOut, extra});
  p.op.work.kind = WorkKind::kAttention;
  p.op.work.m = plan.micro_batch * m.heads;
  p.op.work.n = plan.seq_len;
  p.op.work.k = m.head_dim;
  p.op.work.backward = backward;
  p.op.work.causal = true;
  p.op.work.bent_scores = m.attention_softcap != 0 || m.position == Position::kAlibi;
  // Layers with and without a window take turns; each is costed as their mean.
  p.op.work.attended = static_cast<float>(attended_share(m, plan.seq_len));
  p.op.work.dtype_bytes = static_cast<std::uint8_t>(w.width());
  if (!flash) {
    // Two batched products plus passes over the score matrix; flagged by bytes > 0.
    const double scores = static_cast<double>(plan.micro_batch * m.heads * plan.seq_len) *
                          static_cast<double>(plan.seq_len);
    p.op.work.bytes = static_cast<Bytes>(scores * (backward ? 26 : 22));
    p.op.work.kernels = backward ? 9 : 7;
  } else if (backward) {
    if (plan.deterministic && plan.param_dtype == DType::kBf16) {
      // The gradients of scores are written by what sums over queries and read by what sums over
      // keys (exec/cudnn/README.md).
      p.op.work.ordered = true;
      p.op.work.bytes = 2 * 2 * p.op.work.m * plan.seq_len * plan.seq_len;
    }
    p.temporary_bytes = w.stack().memory == MemoryManager::kStatic
                            ? attention_workspace_bytes(plan.micro_batch, plan.seq_len, m.heads,
                                                        m.kv_heads, m.head_dim, plan.param_dtype,
                                                        plan.deterministic)
                            : 4 * w.tokens() * m.q_dim();  // fp32 accumulator of dQ
  }
  return p;
}

}  // namespace

void attention_forward(const ProgramWriter& w, Program& list) {
  list.push_back(w.norm(Phase::kForward, false, false, Weight::kNorm1));
  for (const Product& p : qkv_products(w)) list.push_back(w.product_forward(p));
  if (w.model().qk_norm) list.push_back(qk_norm_forward(w));
  if (w.has_rope()) list.push_back(rope_forward(w));
  if (w.repeats_heads()) {
    ProgramOp repeat = ProgramWriter::make(OpKind::kCopyOut, Phase::kForward,
                                           {w.fused_qkv() ? kQkv : kK, w.fused_qkv() ? kNone : kV},
                                           {kKRepeated, kVRepeated});
    repeat.op.work = repeat_work(w);
    list.push_back(repeat);
  }
  list.push_back(attention(w, false));
  list.push_back(w.product_forward(output_product(w)));
  if (w.has_post_norms()) {
    list.push_back(w.post_norm(false, false));
  } else if (w.adds_residual()) {
    list.push_back(w.elementwise(OpKind::kResidual, Phase::kForward, w.stack().residual,
                                 w.elements(w.model().hidden), false, {kX, kProjected}, {kXMid}));
  } else {
    list.back().op.in[1] = kX;
  }
}

void attention_backward(ProgramWriter& w, Program& list) {
  if (w.has_post_norms()) list.push_back(w.post_norm(false, true));
  w.product_backward(list, output_product(w), false);
  list.push_back(attention(w, true));
  if (w.repeats_heads()) {
    ProgramOp reduce = ProgramWriter::make(OpKind::kAccumulate, Phase::kBackward, {kDQkv}, {});
    reduce.op.work = repeat_work(w);
    reduce.temporary_bytes = 2 * w.width() * w.tokens() * w.model().q_dim();
    list.push_back(reduce);
  }
  if (w.has_rope()) {
    list.push_back(w.elementwise(OpKind::kRope, Phase::kBackward, w.stack().rope, query_and_key(w),
                                 true, {kDQkv}, {}));
  }
  if (w.model().qk_norm) list.push_back(qk_norm_backward(w));
  std::vector<Product> qkv = qkv_products(w);
  std::reverse(qkv.begin(), qkv.end());
  for (std::size_t i = 0; i < qkv.size(); ++i) w.product_backward(list, qkv[i], i > 0);
  list.push_back(w.norm(Phase::kBackward, false, true, Weight::kNorm1));
  w.add_residual_gradient(list, kDXMid, kDX);
}

}  // namespace shardwright::sim
