// SPDX-License-Identifier: Apache-2.0
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
#include <algorithm>
#include <cmath>

#include "sim/core/workspace.h"
#include "sim/program/real.h"
#include "sim/program/unit_programs.h"

namespace shardwright::sim {

using enum Tensor;

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
    op.work.bytes = 2 * 2 * op.work.m * op.work.n * op.work.n;
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
  Op sums = w.collective(CommGroup::kContext, Collective::kReduceScatter, kv_bytes);
  add_input(sums, kDQkv);
  list.push_back(sums);
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

}  // namespace shardwright::sim
