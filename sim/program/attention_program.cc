// SPDX-License-Identifier: Apache-2.0
// Attention in the first half of a layer: query, key and value, positions, attention, output
// projection.
//
// Stacks differ in what is packed. With packed heads (kQkv) norm and RoPE of heads work in place,
// so what backward needs of them is put aside; otherwise query, key and value are tensors of their
// own, and heads that share keys may get copies of them (repeats_heads).
#include <algorithm>
#include <cmath>

#include "sim/core/workspace.h"
#include "sim/program/low_precision.h"
#include "sim/program/program_writer.h"

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

// Attention over a sequence that context parallel ranks share.
//
// Causal balance: the sequence is cut into 2c parts and rank r holds parts r and 2c-1-r, so every
// rank has the same work. Ring (TransformerEngine's p2p): c steps, of which the first is the causal
// diagonal and every other one half a block, so each has the work of one causal block of S/c; the
// keys and values of the next step travel beside. Backward sends their gradients along, twice the
// bytes, and waits for the last hop. PyTorch's ring goes round by one all-gather beside the first
// step, of keys and values repeated for every query head (torchtitan), adds up in fp32, and sends
// the gradients of keys and values on in fp32 after every step; compiled, it waits for each of
// them. All-gather: keys and values first, then one call. All-to-all (Ulysses): heads are exchanged
// for tokens before and after.

namespace {

/// Of the pairs of a causal mask, those that attention works on, times what it is slower. Layers
/// with and without a window take turns; each is costed as their mean.
double attended(const ProgramWriter& w, bool backward) {
  const SinkSoftware& sinks = w.stack().parallel.sinks;
  if (w.model().attention_sinks) {
    if (sinks.attention_share > 0) return 1 / sinks.attention_share;
    if (backward && w.plan().numerics.precision == Precision::kFp8 && sinks.fp8_backward_share > 0)
      return 1 / sinks.fp8_backward_share;
  }
  const std::int64_t document = w.plan().document_length();
  return attended_share(w.model(), document) * f(document) / f(w.plan().seq_len);
}

/// The tensor cores' kernels of cuBLAS load 16 bytes at a time.
constexpr double kTensorCoreRowBytes = 16;

/// Products over all scores and passes over the score matrix; flagged by bytes > 0.
void make_eager(const ProgramWriter& w, Op& op, bool backward) {
  const ParallelSoftware& parallel = w.stack().parallel;
  const double scores = f(op.work.m) * f(op.work.n) * f(op.work.n);
  op.work.bytes = static_cast<Bytes>(scores * (backward ? parallel.score_backward_traffic_bytes
                                                        : parallel.score_forward_traffic_bytes));
  op.work.kernels = backward ? 9 : 7;
  if (backward) op.temporary_bytes = static_cast<Bytes>(scores * parallel.score_working_bytes);
  const double row_bytes = f(w.width()) * f(w.shape().head_dim);
  op.work.on_fp32_cores =
      parallel.tensor_cores_want_16_bytes && std::fmod(row_bytes, kTensorCoreRowBytes) != 0;
}

void make_flash_backward(const ProgramWriter& w, Op& op) {
  const Plan& plan = w.plan();
  const RankShape& s = w.shape();
  if (plan.deterministic && plan.param_dtype == DType::kBf16) {
    // The gradients of scores are written by what sums over queries and read by what sums over
    // keys (exec/cudnn/README.md).
    op.work.ordered = true;
    op.work.bytes = Bytes{4} * op.work.m * op.work.n * op.work.n;
  }
  op.temporary_bytes =
      w.stack().memory == MemoryManager::kStatic
          ? attention_workspace_bytes(plan.micro_batch, s.seq_len, s.heads, s.kv_heads, s.head_dim,
                                      plan.param_dtype, plan.deterministic)
          : 4 * w.tokens() * s.q_dim();  // fp32 accumulator of dQ
}

/// Causal attention of `heads` over sequences of `tokens`, or over what has the same work; `remote`
/// is read beside the rank's own keys and values.
Op attention_op(const ProgramWriter& w, std::int64_t heads, std::int64_t tokens, bool backward,
                Operand remote = {}) {
  const bool packed = w.fused_qkv() && !w.is_latent();
  const Operand q = packed ? kQkv : kQ;
  const Operand k = w.repeats_heads() ? kKRepeated : packed ? kNone : kK;
  const Operand v = w.repeats_heads() ? kVRepeated
                    : w.is_latent()   ? kKeyValueUp
                    : packed          ? kNone
                                      : kV;
  const Operand extra = w.eager_attention() ? kProbabilities : kAttentionStats;
  Op op = backward
              ? ProgramWriter::make(OpKind::kAttention, Phase::kBackward,
                                    {q, k, v, kAttentionOut, extra, kDAttention, remote}, {kDQkv})
              : ProgramWriter::make(OpKind::kAttention, Phase::kForward, {q, k, v, remote},
                                    {kAttentionOut, extra});
  op.work.kind = WorkKind::kAttention;
  op.work.m = w.plan().micro_batch * std::max<std::int64_t>(1, heads);
  op.work.n = tokens;
  // Values may be narrower than keys: the products of both count with their mean width.
  op.work.k = (w.shape().head_dim + w.shape().v_head_dim) / 2;
  op.work.backward = backward;
  op.work.bent_scores = w.model().attention_softcap != 0 || w.model().position == Position::kAlibi;
  op.work.attended = static_cast<float>(attended(w, backward));
  op.work.dtype_bytes = static_cast<std::uint8_t>(w.width());
  if (w.eager_attention()) {
    make_eager(w, op, backward);
  } else if (backward) {
    make_flash_backward(w, op);
  }
  return op;
}

/// Recipes of models with sinks turn attention in fp8 on: what it reads is laid out by heads and
/// cast first.
void cast_for_attention(const ProgramWriter& w, Ops& list, bool backward) {
  const double input_bytes = w.stack().parallel.sinks.fp8_input_bytes;
  if (!w.model().attention_sinks || w.plan().numerics.precision != Precision::kFp8 ||
      input_bytes <= 0)
    return;
  const RankShape& s = w.shape();
  const double channels = f(backward ? s.attention_out_dim() : s.q_dim() + 2 * s.kv_dim());
  constexpr int kKernels = 3;  // laid out, cast, scales ordered
  list.push_back(w.memory(OpKind::kQuantize, input_bytes * f(s.tokens) * channels, kKernels,
                          w.stack().parallel.cast_efficiency,
                          {backward        ? kDAttention
                           : w.fused_qkv() ? kQkv
                                           : kQ}));
}

Op transfer(Pattern pattern, double bytes, Overlap overlap, std::initializer_list<Operand> in,
            std::initializer_list<Operand> out = {}) {
  Op op = ProgramWriter::make(OpKind::kAllGather, Phase::kForward, in, out);
  op.collective = {CommGroup::kContext, Collective::kAllGather, pattern, overlap, bytes};
  return op;
}

/// Where keys and values lie before they leave.
Operand own_keys(const ProgramWriter& w) {
  return w.fused_qkv() && !w.is_latent() ? kQkv : kK;
}
Operand own_values(const ProgramWriter& w) {
  return w.is_latent() ? kKeyValueUp : w.fused_qkv() ? kNone : kV;
}

void ring(const ProgramWriter& w, Ops& list, bool backward) {
  const RankShape& s = w.shape();
  const double kv_bytes = f(w.width()) * f(s.tokens) * 2 * f(s.kv_dim());
  for (std::int64_t step = 0; step < s.cp; ++step) {
    if (step + 1 < s.cp) {
      Op next = transfer(Pattern::kRingStep, (backward && step > 0 ? 2 : 1) * kv_bytes,
                         Overlap::kFollowing, {own_keys(w), own_values(w)}, {kContextInput});
      next.joins = step > 0;  // what this step reads has arrived
      list.push_back(next);
    }
    Op op = attention_op(w, s.heads, s.seq_len, backward, step > 0 ? kContextInput : kNone);
    op.joins = step > 0 && step + 1 == s.cp;
    list.push_back(op);
    if (step > 0 && !backward) {
      // Outputs so far and this step's are put together by their sums of exponents.
      list.push_back(w.memory(OpKind::kAccumulate, 3 * f(w.width()) * w.elements(s.q_dim()), 1,
                              w.stack().copies.add, {kAttentionOut}));
    }
  }
  if (backward) list.push_back(transfer(Pattern::kRingStep, kv_bytes, Overlap::kNone, {kDQkv}));
}

void gathered_ring(const ProgramWriter& w, Ops& list, bool backward) {
  const RankShape& s = w.shape();
  const double queries = w.elements(s.q_dim());
  const double pairs = w.elements(s.q_dim() + s.attention_out_dim());  // keys and values
  constexpr double kSum = 4;                                           // bytes: fp32
  const auto summed = [&](double elements) { return (2 * kSum + f(w.width())) * elements; };
  const Overlap overlap =
      w.stack().parallel.context.blocking_ring ? Overlap::kNone : Overlap::kFollowing;
  list.push_back(w.memory(OpKind::kCopyIn, 2 * f(w.width()) * pairs, 1,
                          w.stack().copies.concatenate, {own_keys(w), own_values(w)},
                          {kContextInput}));
  list.push_back(
      transfer(Pattern::kCollective, f(w.width()) * pairs * f(s.cp), overlap, {kContextInput}));
  for (std::int64_t step = 0; step < s.cp; ++step) {
    Op op = attention_op(w, s.heads, s.seq_len, backward, kContextInput);
    op.joins = !backward && step == 1;
    list.push_back(op);
    if (!backward) {
      if (step > 0)
        list.push_back(w.memory(OpKind::kAccumulate, summed(queries), 1, w.stack().copies.add,
                                {kAttentionOut}));
      continue;
    }
    // The sums of the step before have arrived; they leave again put together in one tensor.
    Op sums = w.memory(OpKind::kAccumulate, summed(queries + pairs) + 2 * kSum * pairs, 3,
                       w.stack().copies.add, {kDQkv});
    sums.joins = true;
    list.push_back(sums);
    list.push_back(transfer(Pattern::kRingStep, kSum * pairs,
                            step + 1 == s.cp ? Overlap::kNone : overlap, {kDQkv}));
  }
}

void gathered(const ProgramWriter& w, Ops& list, bool backward) {
  const RankShape& s = w.shape();
  const double kv_bytes = f(w.width()) * f(s.tokens) * 2 * f(s.kv_dim()) * f(s.cp);
  list.push_back(transfer(Pattern::kCollective, kv_bytes, Overlap::kNone,
                          {own_keys(w), own_values(w)}, {kContextInput}));
  list.push_back(attention_op(w, s.heads / s.cp, s.seq_len * s.cp, backward, kContextInput));
  if (!backward) return;
  list.push_back(w.collective(CommGroup::kContext, Collective::kReduceScatter, kv_bytes,
                              Overlap::kNone, {kDQkv}));
}

void exchanged(const ProgramWriter& w, Ops& list, bool backward) {
  const RankShape& s = w.shape();
  const double q_bytes = f(w.width()) * w.elements(s.q_dim());
  const double qkv_bytes = q_bytes + f(w.width()) * f(s.tokens) * 2 * f(s.kv_dim());
  const auto exchange = [&](double bytes, std::initializer_list<Operand> in,
                            std::initializer_list<Operand> out = {}) {
    list.push_back(transfer(Pattern::kExchange, bytes, Overlap::kNone, in, out));
  };
  if (backward) {
    exchange(q_bytes, {kDAttention});
  } else {
    exchange(qkv_bytes, {w.fused_qkv() ? kNone : kQ, own_keys(w), own_values(w)}, {kContextInput});
  }
  Op op = attention_op(w, s.heads / s.cp, s.seq_len * s.cp, backward, kContextInput);
  // What was exchanged is all that it reads of queries, keys and values.
  const auto rest = std::remove_if(std::begin(op.in), std::end(op.in), [](const Operand& in) {
    return in == kQ || in == kK || in == kV || in == kQkv || in == kKeyValueUp ||
           in == kKRepeated || in == kVRepeated;
  });
  std::fill(rest, std::end(op.in), Operand());
  list.push_back(op);
  backward ? exchange(qkv_bytes, {kDQkv}) : exchange(q_bytes, {kAttentionOut});
}

}  // namespace

void attention_core(const ProgramWriter& w, Ops& list, bool backward) {
  cast_for_attention(w, list, backward);
  if (w.shape().cp == 1) {
    list.push_back(attention_op(w, w.shape().heads, w.shape().seq_len, backward));
    return;
  }
  switch (w.context_comm()) {
    case ContextComm::kRing:
      return w.stack().parallel.context.ring_by_all_gather ? gathered_ring(w, list, backward)
                                                           : ring(w, list, backward);
    case ContextComm::kAllGather:
      return gathered(w, list, backward);
    case ContextComm::kAllToAll:
      return exchanged(w, list, backward);
  }
}

// Latent attention up to its core: the two products down and up of queries, and of keys with
// values. Those down are computed by every tensor rank on its own tokens, those up divide heads.

namespace {

/// Channels of the two latent vectors, and those of heads that are made of them.
struct LatentSizes {
  std::int64_t query = 0, key_value = 0;       // with the rotated part of the key
  std::int64_t query_heads = 0, up_heads = 0;  // of this rank
};

LatentSizes latent_sizes(const ProgramWriter& w) {
  const LatentAttention& l = w.model().latent;
  return {l.q_rank, l.kv_rank + l.rope_dim, w.shape().q_dim(),
          w.shape().heads * (l.nope_dim + l.v_dim)};
}

/// x of all tokens of a latent vector with sequence parallelism, or the sum of its gradients.
void share_latent(const ProgramWriter& w, Ops& list, std::int64_t channels, bool backward,
                  Operand from, Operand to) {
  if (!w.shape().sequence_parallel) return;
  list.push_back(w.tensor_collective(backward ? Collective::kReduceScatter : Collective::kAllGather,
                                     f(w.width()) * w.elements(channels), {from}, {to}));
}

void multiply(const ProgramWriter& w, Ops& list, OpKind kind, Weight weight, std::int64_t tokens,
              std::int64_t n, std::int64_t k, Operand in, Operand out) {
  Op op = w.product(kind, tokens, n, k);
  op.weight = weight;
  add_input(op, in);
  add_output(op, out);
  list.push_back(op);
}

/// Both gradients of a product y[tokens, n] of `in`.
void multiply_back(const ProgramWriter& w, Ops& list, Weight weight, std::int64_t tokens,
                   std::int64_t n, std::int64_t k, Operand d_out, Operand d_in, Operand in) {
  multiply(w, list, OpKind::kInputGradient, weight, tokens, k, n, d_out, d_in);
  Op of_weight = w.weight_gradient(tokens, n, k);
  of_weight.weight = weight;
  add_input(of_weight, d_out);
  add_input(of_weight, in);
  list.push_back(of_weight);
}

/// RoPE of its part of the queries and of the one key; keys put together for all heads.
Op turn(const ProgramWriter& w, bool backward) {
  const double turned = w.elements((w.shape().heads + 1) * w.model().latent.rope_dim);
  return w.elementwise(OpKind::kRope, w.stack().rope, turned, backward);
}
Op put_together(const ProgramWriter& w, Operand from, Operand to) {
  return w.memory(OpKind::kCopyOut, 2 * f(w.width()) * w.elements(w.shape().q_dim()), 2,
                  w.stack().copies.copy, {from}, {to});
}

Op latent_norm(const ProgramWriter& w, std::int64_t channels, bool backward, Operand in,
               Operand out) {
  Op op = w.elementwise(OpKind::kNorm, w.stack().norm, w.sharded_elements(channels), backward, {in},
                        {out});
  op.weight = Weight::kLatentNorm;
  return op;
}

}  // namespace

void latent_forward(const ProgramWriter& w, Ops& list) {
  const RankShape& s = w.shape();
  const LatentSizes z = latent_sizes(w);
  const bool divided = s.sequence_parallel;
  if (z.query > 0) {
    multiply(w, list, OpKind::kQProjection, Weight::kQueryDown, s.sharded_tokens, z.query, s.hidden,
             kNorm1Out, kQueryLatent);
    list.push_back(latent_norm(w, z.query, false, kQueryLatent, kQueryLatentNorm));
    share_latent(w, list, z.query, false, kQueryLatentNorm, kQueryLatentGathered);
    multiply(w, list, OpKind::kQProjection, Weight::kQueryUp, s.tokens, z.query_heads, z.query,
             divided ? kQueryLatentGathered : kQueryLatentNorm, kQRaw);
  } else {
    Op query = w.product(OpKind::kQProjection, s.tokens, z.query_heads, s.hidden);
    query.weight = Weight::kQuery;
    add_input(query, w.gathered_norm(false));
    add_output(query, kQRaw);
    w.gather_before(list, query, kNorm1Out, kNorm1Gathered, Overlap::kNone);
  }
  multiply(w, list, OpKind::kKProjection, Weight::kKeyValueDown, s.sharded_tokens, z.key_value,
           s.hidden, kNorm1Out, kKeyLatent);
  list.push_back(latent_norm(w, w.model().latent.kv_rank, false, kKeyLatent, kKeyLatentNorm));
  share_latent(w, list, z.key_value, false, kKeyLatentNorm, kKeyLatentGathered);
  multiply(w, list, OpKind::kVProjection, Weight::kKeyValueUp, s.tokens, z.up_heads,
           w.model().latent.kv_rank, divided ? kKeyLatentGathered : kKeyLatentNorm, kKeyValueUp);
  Op rope = turn(w, false);
  add_input(rope, kQRaw);
  add_output(rope, kQ);
  list.push_back(rope);
  list.push_back(put_together(w, kKeyValueUp, kK));
}

void latent_backward(const ProgramWriter& w, Ops& list) {
  const RankShape& s = w.shape();
  const LatentSizes z = latent_sizes(w);
  const std::int64_t kv_rank = w.model().latent.kv_rank;
  list.push_back(put_together(w, kDQkv, kNone));
  Op rope = turn(w, true);
  add_input(rope, kDQkv);
  list.push_back(rope);
  multiply_back(w, list, Weight::kKeyValueUp, s.tokens, z.up_heads, kv_rank, kDQkv, kDLatent,
                kKeyLatentNorm);
  share_latent(w, list, z.key_value, true, kDLatent, kNone);
  list.push_back(latent_norm(w, kv_rank, true, kDLatent, kNone));
  add_input(list.back(), kKeyLatent);
  multiply_back(w, list, Weight::kKeyValueDown, s.sharded_tokens, z.key_value, s.hidden, kDLatent,
                kDNorm1, kNorm1Out);
  if (z.query > 0) {
    multiply_back(w, list, Weight::kQueryUp, s.tokens, z.query_heads, z.query, kDQkv, kDLatent,
                  kQueryLatentNorm);
    share_latent(w, list, z.query, true, kDLatent, kNone);
    list.push_back(latent_norm(w, z.query, true, kDLatent, kNone));
    add_input(list.back(), kQueryLatent);
    multiply_back(w, list, Weight::kQueryDown, s.sharded_tokens, z.query, s.hidden, kDLatent,
                  kDNorm1, kNorm1Out);
  } else {
    multiply_back(w, list, Weight::kQuery, s.tokens, z.query_heads, s.hidden, kDQkv, kDNorm1,
                  kNorm1Out);
    share_latent(w, list, s.hidden, true, kDNorm1, kNone);
  }
  // Gradients of the two branches are added up.
  list.push_back(w.memory(OpKind::kAccumulate, 3 * f(w.width()) * w.sharded_elements(s.hidden), 1,
                          w.stack().copies.add, {kDNorm1}));
}

}  // namespace shardwright::sim
