// SPDX-License-Identifier: Apache-2.0
// Latent attention up to its core: the two products down and up of queries, and of keys with
// values. Those down are computed by every tensor rank on its own tokens, those up divide heads.
#include "sim/program/real.h"
#include "sim/program/unit_programs.h"

namespace shardwright::sim {

using enum Tensor;

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
  Op op = w.collective(CommGroup::kTensor,
                       backward ? Collective::kReduceScatter : Collective::kAllGather,
                       f(w.width()) * w.elements(channels));
  add_input(op, from);
  add_output(op, to);
  list.push_back(op);
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
