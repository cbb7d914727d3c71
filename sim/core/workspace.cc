// SPDX-License-Identifier: Apache-2.0
#include "sim/core/workspace.h"

#include <algorithm>

#include "sim/core/arena.h"
#include "sim/core/local_shape.h"

namespace shardwright {

std::int64_t rotated_elements(const Model& model) {
  if (model.position != Position::kRope) return 0;
  const double rotated = static_cast<double>(model.head_dim) * model.rope.rotary_fraction;
  return static_cast<std::int64_t>(rotated) / 2 * 2;
}

Bytes attention_workspace_bytes(std::int64_t batch, std::int64_t seq, std::int64_t heads,
                                std::int64_t kv_heads, std::int64_t head_dim, DType compute,
                                bool ordered) {
  constexpr Bytes kAlignmentOfParts = 4 * kArenaAlignment;
  const Bytes rows = 4 * batch * seq * heads * (head_dim + 2) + kAlignmentOfParts;
  if (compute != DType::kBf16) return rows;
  // The engine works in tiles of 128. dK and dV are kept for every query head of the group.
  const Bytes tiled = round_up(seq, 128);
  const Bytes query_head = 2 * tiled * tiled + 4 * seq * head_dim + 4 * seq;
  const Bytes key_head = heads / kv_heads * query_head + kAlignmentOfParts;
  if (!ordered) return std::max(rows, std::min(key_head, kMostAttentionWorkspace));
  const std::int64_t blocks = tiled / 128 * (heads / kv_heads);  // of a key head
  std::int64_t key_heads = 1;
  while (key_heads < kv_heads &&
         (kv_heads % key_heads != 0 || key_heads * blocks < kOrderedAttentionBlocks)) {
    ++key_heads;
  }
  // A sequence that is too little for a GPU takes the others with it.
  const bool whole_batch = key_heads * blocks < kOrderedAttentionBlocks;
  return std::max(rows, (whole_batch ? batch : 1) * key_heads * key_head);
}

Bytes fp8_operand_bytes(std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kBlock = 32, kTileRows = 128, kTileBlocks = 4;
  const Bytes row_scales = 4 * rows + 8;
  const Bytes block_scales =
      round_up(rows, kTileRows) * round_up(ceil_div(cols, kBlock), kTileBlocks);
  return round_up(rows * cols, kArenaAlignment) +
         round_up(std::max(row_scales, block_scales), kArenaAlignment);
}

Fp8Workspace plan_fp8_workspace(const Model& model, std::int64_t tokens) {
  struct Product {
    std::int64_t out, in;
  };
  const Product products[] = {{model.q_dim() + 2 * model.kv_dim(), model.hidden},
                              {model.hidden, model.q_dim()},
                              {(model.gated_mlp ? 2 : 1) * model.ffn, model.hidden},
                              {model.hidden, model.ffn}};
  Fp8Workspace w;
  for (const auto& [out, in] : products) {
    w.left_bytes =
        std::max({w.left_bytes, fp8_operand_bytes(tokens, in), fp8_operand_bytes(tokens, out)});
    w.right_bytes = std::max({w.right_bytes, fp8_operand_bytes(out, in), fp8_operand_bytes(in, out),
                              fp8_operand_bytes(in, tokens)});
    w.gradient_bytes = std::max(w.gradient_bytes, fp8_operand_bytes(out, tokens));
  }
  return w;
}

LeafWorkspace plan_leaf_workspace(const Model& model, const Plan& plan) {
  const RankShape shape = rank_shape(model, plan);
  const std::int64_t parts = plan.feature_parts(), leaves = parts / shape.tp;
  const std::int64_t token_leaves = shape.sequence_parallel ? leaves : parts;
  constexpr Bytes kFloat = 4;
  LeafWorkspace room;
  if (token_leaves > 1) {
    room.partial_bytes = kFloat * (token_leaves + 1) * std::max(model.hidden, model.head_dim);
    room.operand_bytes = kFloat * 2 * ceil_div(shape.sharded_tokens, token_leaves);
  }
  if (leaves == 1) return room;
  const Model local = model_of_rank(model, shape);
  const std::int64_t cols =
      std::max(local.q_dim() + 2 * local.kv_dim(), (model.gated_mlp ? 2 : 1) * local.ffn) / leaves;
  constexpr Bytes kLossPart = 12;  // kernels::VocabularyPart
  room.partial_bytes = std::max(room.partial_bytes,
                                bytes_of(plan.param_dtype) * leaves * shape.tokens * model.hidden);
  room.operand_bytes = std::max({room.operand_bytes, kFloat * cols * (shape.tokens + model.hidden),
                                 kFloat * shape.tokens * (shape.heads + leaves) / leaves,
                                 kLossPart * parts * shape.tokens});
  return room;
}

WorkspacePlan plan_workspace(const Model& model, const Plan& plan) {
  const std::int64_t tokens = plan.micro_batch * plan.seq_len;
  WorkspacePlan w;
  w.batch_bytes = 16 * plan.grad_accum * tokens;
  w.rope_bytes = 8 * plan.seq_len * (rotated_elements(model) / 2);
  std::int64_t widest = model.hidden;
  if (model.qkv_bias) widest = std::max(widest, model.q_dim() + 2 * model.kv_dim());
  if (model.mlp_bias) widest = std::max(widest, (model.gated_mlp ? 2 : 1) * model.ffn);
  const Bytes row_sums =
      4 * std::max(kPartialSums * widest, norm_partial_sums(tokens, model.hidden) * model.hidden);
  const std::int64_t positions = model.position == Position::kLearned ? model.max_positions : 0;
  const Bytes sorted_tokens = 4 * (tokens + std::max(model.vocab, positions) + 1);
  const Bytes token_losses = 8 * tokens;
  const Bytes split_product = 4 * model.hidden * std::max(model.ffn, model.q_dim());
  w.scratch_bytes = std::max(
      {row_sums, sorted_tokens, token_losses, std::min(split_product, kMostProductScratch)});
  w.exchange_bytes = 8 * (kExactSumWords + 2 * plan.grad_accum);

  w.rope_offset = w.batch_offset + round_up(w.batch_bytes, kArenaAlignment);
  w.scratch_offset = w.rope_offset + round_up(w.rope_bytes, kArenaAlignment);
  w.fp8_offset = w.scratch_offset + round_up(w.scratch_bytes, kArenaAlignment);
  if (plan.numerics.precision == Precision::kFp8)
    w.fp8_bytes = plan_fp8_workspace(model, tokens).size_bytes();
  w.leaves = plan_leaf_workspace(model, plan);
  w.leaf_partial_offset = w.fp8_offset + round_up(w.fp8_bytes, kArenaAlignment);
  w.leaf_operand_offset = w.leaf_partial_offset + round_up(w.leaves.partial_bytes, kArenaAlignment);
  w.exchange_offset = w.leaf_operand_offset + round_up(w.leaves.operand_bytes, kArenaAlignment);
  w.size_bytes = w.exchange_offset + round_up(plan.gpus * w.exchange_bytes + 64, kArenaAlignment);
  return w;
}

}  // namespace shardwright
