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

#include "sim/program/real.h"
#include "sim/program/unit_lists.h"

namespace shardwright::sim {
namespace {

/// Of the pairs of a causal mask, those that attention works on, times what it is slower.
double attended(const ListWriter& w, bool backward) {
  const SinkSoftware& sinks = w.stack().parallel.sinks;
  if (w.model().attention_sinks) {
    if (sinks.attention_share > 0) return 1 / sinks.attention_share;
    if (backward && w.plan().numerics.precision == Precision::kFp8 && sinks.fp8_backward_share > 0)
      return 1 / sinks.fp8_backward_share;
  }
  return attended_share(w.model(), w.plan().seq_len);
}

/// The tensor cores' kernels of cuBLAS load 16 bytes at a time.
constexpr double kTensorCoreRowBytes = 16;

/// Causal attention of `heads` over sequences of `tokens`, or over what has the same work.
Op attention_op(const ListWriter& w, std::int64_t heads, std::int64_t tokens, bool backward) {
  const Plan& plan = w.plan();
  Op op;
  op.kind = OpKind::kAttention;
  op.work.kind = WorkKind::kAttention;
  op.work.m = plan.micro_batch * std::max<std::int64_t>(1, heads);
  op.work.n = tokens;
  // Values may be narrower than keys: the products of both count with their mean width.
  op.work.k = (w.shape().head_dim + w.shape().v_head_dim) / 2;
  op.work.attended = static_cast<float>(attended(w, backward));
  op.work.backward = backward;
  if (w.eager_attention()) {
    // Products over all scores and passes over the score matrix.
    const ParallelSoftware& parallel = w.stack().parallel;
    const double scores = f(op.work.m) * f(tokens) * f(tokens);
    op.work.bytes = static_cast<Bytes>(scores * (backward ? parallel.score_backward_traffic_bytes
                                                          : parallel.score_forward_traffic_bytes));
    op.work.kernels = backward ? 9 : 7;
    const double row_bytes = w.width() * f(w.shape().head_dim);
    op.work.on_fp32_cores =
        parallel.tensor_cores_want_16_bytes && std::fmod(row_bytes, kTensorCoreRowBytes) != 0;
  } else if (backward) {
    op.work.kernels = 3;
  }
  return op;
}

/// Recipes of models with sinks turn attention in fp8 on: what it reads is laid out by heads and
/// cast first.
void cast_for_attention(const ListWriter& w, Ops& list, bool backward) {
  const double input_bytes = w.stack().parallel.sinks.fp8_input_bytes;
  if (!w.model().attention_sinks || w.plan().numerics.precision != Precision::kFp8 ||
      input_bytes <= 0)
    return;
  const RankShape& s = w.shape();
  const double channels = f(backward ? s.attention_out_dim() : s.q_dim() + 2 * s.kv_dim());
  constexpr int kKernels = 3;  // laid out, cast, scales ordered
  list.push_back(w.memory(OpKind::kQuantize, input_bytes * f(s.tokens) * channels, kKernels,
                          w.stack().parallel.cast_efficiency));
}

Op transfer(Pattern pattern, double bytes, Overlap overlap) {
  Op op;
  op.kind = OpKind::kAllGather;
  op.collective = {CommGroup::kContext, Collective::kAllGather, pattern, overlap, bytes};
  return op;
}

void ring(const ListWriter& w, Ops& list, bool backward) {
  const RankShape& s = w.shape();
  const double kv_bytes = w.width() * f(s.tokens) * 2 * f(s.kv_dim());
  for (std::int64_t step = 0; step < s.cp; ++step) {
    if (step + 1 < s.cp) {
      Op next = transfer(Pattern::kRingStep, (backward && step > 0 ? 2 : 1) * kv_bytes,
                         Overlap::kFollowing);
      next.joins = step > 0;  // what this step reads has arrived
      list.push_back(next);
    }
    Op op = attention_op(w, s.heads, s.seq_len, backward);
    op.joins = step > 0 && step + 1 == s.cp;
    list.push_back(op);
    if (step > 0 && !backward) {
      // Outputs so far and this step's are put together by their sums of exponents.
      list.push_back(w.memory(OpKind::kAccumulate, 3 * w.width() * f(s.tokens) * f(s.q_dim()), 1,
                              w.stack().copies.add));
    }
  }
  if (backward) list.push_back(transfer(Pattern::kRingStep, kv_bytes, Overlap::kNone));
}

void gathered_ring(const ListWriter& w, Ops& list, bool backward) {
  const RankShape& s = w.shape();
  const double queries = f(s.tokens) * f(s.q_dim());
  const double pairs = f(s.tokens) * f(s.q_dim() + s.attention_out_dim());  // keys and values
  constexpr double kSum = 4;                                                // bytes: fp32
  const auto summed = [&](double elements) { return (2 * kSum + w.width()) * elements; };
  const Overlap overlap =
      w.stack().parallel.context.blocking_ring ? Overlap::kNone : Overlap::kFollowing;
  list.push_back(w.memory(OpKind::kCopyIn, 2 * w.width() * pairs, 1, w.stack().copies.concatenate));
  list.push_back(transfer(Pattern::kCollective, w.width() * pairs * f(s.cp), overlap));
  for (std::int64_t step = 0; step < s.cp; ++step) {
    Op op = attention_op(w, s.heads, s.seq_len, backward);
    op.joins = !backward && step == 1;
    list.push_back(op);
    if (!backward) {
      if (step > 0)
        list.push_back(w.memory(OpKind::kAccumulate, summed(queries), 1, w.stack().copies.add));
      continue;
    }
    // The sums of the step before have arrived; they leave again put together in one tensor.
    Op sums = w.memory(OpKind::kAccumulate, summed(queries + pairs) + 2 * kSum * pairs, 3,
                       w.stack().copies.add);
    sums.joins = true;
    list.push_back(sums);
    list.push_back(
        transfer(Pattern::kRingStep, kSum * pairs, step + 1 == s.cp ? Overlap::kNone : overlap));
  }
}

void gathered(const ListWriter& w, Ops& list, bool backward) {
  const RankShape& s = w.shape();
  const double kv_bytes = w.width() * f(s.tokens) * 2 * f(s.kv_dim()) * f(s.cp);
  list.push_back(w.collective(CommGroup::kContext, Collective::kAllGather, kv_bytes));
  list.push_back(attention_op(w, s.heads / s.cp, s.seq_len * s.cp, backward));
  if (backward)
    list.push_back(w.collective(CommGroup::kContext, Collective::kReduceScatter, kv_bytes));
}

void exchanged(const ListWriter& w, Ops& list, bool backward) {
  const RankShape& s = w.shape();
  const double q_bytes = w.width() * f(s.tokens) * f(s.q_dim());
  const double qkv_bytes = q_bytes + w.width() * f(s.tokens) * 2 * f(s.kv_dim());
  list.push_back(transfer(Pattern::kExchange, backward ? q_bytes : qkv_bytes, Overlap::kNone));
  list.push_back(attention_op(w, s.heads / s.cp, s.seq_len * s.cp, backward));
  list.push_back(transfer(Pattern::kExchange, backward ? qkv_bytes : q_bytes, Overlap::kNone));
}

}  // namespace

void ListWriter::attention_core(Ops& list, bool backward) const {
  cast_for_attention(*this, list, backward);
  if (shape_.cp == 1) {
    list.push_back(attention_op(*this, shape_.heads, shape_.seq_len, backward));
    return;
  }
  switch (context_) {
    case ContextComm::kRing:
      return stack_.parallel.context.ring_by_all_gather ? gathered_ring(*this, list, backward)
                                                        : ring(*this, list, backward);
    case ContextComm::kAllGather:
      return gathered(*this, list, backward);
    case ContextComm::kAllToAll:
      return exchanged(*this, list, backward);
  }
}

}  // namespace shardwright::sim
