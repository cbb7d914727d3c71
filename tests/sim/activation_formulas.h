// SPDX-License-Identifier: Apache-2.0
// What a layer keeps for backward by formulas, as papers and frameworks' documents count it: a
// second way to the bytes that follow from lifetimes of tensors (sim/memory/stage_memory.h).
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "sim/program/expert_program.h"
#include "sim/program/list_pass.h"
#include "sim/program/low_precision.h"
#include "sim/program/program_writer.h"

namespace shardwright::sim::formulas {

/// Of one layer and micro-batch on a rank, in bytes.
struct LayerActivations {
  double kept = 0;        // from forward to backward
  double checkpoint = 0;  // the same where the layer runs again
};

inline double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

inline bool piece(const Plan& plan, RecomputePiece which) {
  return plan.recompute == Recompute::kPieces && (plan.pieces & which) != 0;
}

/// What is kept for backward of one layer, by the parts that can run again.
struct Parts {
  double input = 0;  // of the layer
  double norms = 0, norm_outputs = 0;
  double qkv = 0, scores = 0, attention_out = 0;
  double latents = 0;  // of latent attention, and their norms' outputs
  double gate_up = 0, activation = 0, other = 0;
  double dispatched = 0, shared = 0, router = 0;
  double all() const {
    return norms + norm_outputs + qkv + scores + attention_out + latents + gate_up + activation +
           dispatched + shared + router + other;
  }
};

/// What layers with experts keep in place of an MLP: scores of the router, rows as they arrived,
/// what FC1 and the activation put out, the shared experts' inner tensors.
inline void add_experts(const ProgramWriter& w, Parts& p) {
  const ExpertShape e = expert_shape(w.model(), w.plan(), w.stack());
  const double width = f(w.width()), saved = saved_input_bytes(w.plan());
  const double gates = w.model().gated_mlp ? 2 : 1;
  p.gate_up = width * gates * e.kept_rows * f(e.ffn);
  p.activation = saved * e.kept_rows * f(e.ffn);
  p.dispatched = saved * e.kept_rows * f(w.shape().hidden);
  p.shared = f(w.shape().tokens) * f(e.shared_ffn) * (width * gates + saved);
  p.router = 4 * e.tokens * f(w.model().experts.count);
}

inline Parts parts_of(const ProgramWriter& w, bool experts) {
  const RankShape& s = w.shape();
  const Stack& stack = w.stack();
  const Model& model = w.model();
  const double tokens = f(s.tokens), sharded = f(s.sharded_tokens), h = f(s.hidden);
  const double width = f(w.width()), saved = saved_input_bytes(w.plan());
  Parts p;
  p.input = width * sharded * h;
  p.norms = 2 * sharded *
            (sum(stack.norm.saved_bytes) * h + stack.norm.saved_bytes_per_token +
             (stack.norm_saves_input ? width * h : 0));
  p.norm_outputs = 2 * saved * (w.keeps_gathered() ? tokens : sharded) * h;
  p.qkv = width * tokens * f(s.q_dim() + 2 * s.kv_dim());
  const LatentAttention& latent = model.latent;
  if (latent.kv_rank > 0) {
    // Keys of all heads are put together anew; values are a view of the product's result.
    p.qkv = width * tokens * f(2 * s.q_dim() + s.heads * (latent.nope_dim + latent.v_dim));
    p.latents = 2 * width * sharded * f(latent.q_rank + latent.kv_rank + latent.rope_dim);
  }
  if (stack.repeats_kv_heads) p.qkv += width * tokens * 2 * f(s.q_dim() - s.kv_dim());
  // Attention keeps its output, the product after it that in fewer bits.
  p.attention_out = (width + (saved < width ? saved : 0)) * tokens * f(s.attention_out_dim());
  if (w.eager_attention()) {
    p.scores = stack.parallel.score_bytes * tokens * f(s.heads) * f(w.plan().seq_len);
  } else {
    p.scores = 4 * tokens * f(s.heads);
  }
  const KernelGroup& activation = model.gated_mlp ? stack.gated_activation : stack.plain_activation;
  p.gate_up = width * tokens * f(s.ffn) * (model.gated_mlp ? 2 : 1);
  p.activation = tokens * f(s.ffn) * (saved + sum(activation.saved_bytes));
  if (experts) add_experts(w, p);
  p.other = stack.parallel.layer_saved_bytes * sharded * h;
  return p;
}

inline double checkpointed(const Parts& p, const ProgramWriter& w) {
  const Plan& plan = w.plan();
  const RankShape& s = w.shape();
  if (plan.recompute == Recompute::kFull) return p.input;
  if (plan.recompute == Recompute::kSelectiveOp) {
    // torchtitan keeps attention and the results of every second product, and casts them again.
    return p.input + p.scores +
           f(w.width()) * f(s.tokens) * f(s.attention_out_dim() + s.q_dim() + s.kv_dim() + s.ffn) +
           p.input;
  }
  double kept = p.all();
  if (piece(plan, kPieceBlock)) return p.input;
  if (piece(plan, kPieceNorm)) kept -= p.norm_outputs;
  if (piece(plan, kPieceMoe) && p.dispatched > 0) {
    kept -= p.gate_up + p.activation + p.dispatched + p.shared + p.router;
  } else if (piece(plan, kPieceFfn) && p.dispatched == 0) {
    kept -= p.gate_up + p.activation;
  } else if (piece(plan, kPieceSwiglu) || piece(plan, kPieceMoeActivation)) {
    kept -= p.activation;
  }
  if (piece(plan, kPieceSharedExperts) && !piece(plan, kPieceMoe)) kept -= p.shared;
  if (piece(plan, kPieceMlaUpProjection) && p.latents > 0) kept -= p.qkv;
  if (piece(plan, kPieceAttention)) {
    kept -= p.qkv + p.scores + p.attention_out;
  } else if (piece(plan, kPieceCoreAttention) && w.eager_attention()) {
    kept -= p.scores;
  }
  return kept;
}

/// Logits that exist at once, with what loss and its gradient make of them.
inline double loss_bytes(const ProgramWriter& w) {
  const Stack& stack = w.stack();
  const RankShape& s = w.shape();
  const bool gathers = s.tp > 1 && !stack.parallel.vocabulary_parallel_loss;
  const double tokens = f(loss_chunk_tokens(w.plan(), stack, s.tokens));
  const double logits = tokens * f(gathers ? w.model().vocab : s.vocab);
  const double own = gathers ? f(w.width()) * tokens * f(s.vocab) : 0;
  double each = f(w.width()) + (stack.loss_upcasts_logits ? 4 : 0) + sum(stack.loss.saved_bytes) +
                stack.loss.backward_temporary_bytes;
  if (s.tp > 1 && stack.loss_upcasts_logits)
    each = std::max(each, stack.parallel.loss.separate_parts_bytes);
  return own + logits * each;
}

inline LayerActivations layer_activations(const ProgramWriter& w, bool experts = false) {
  const Parts parts = parts_of(w, experts);
  return {parts.all(), checkpointed(parts, w)};
}

}  // namespace shardwright::sim::formulas
