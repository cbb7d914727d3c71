// SPDX-License-Identifier: Apache-2.0
// How large a rank's tensors are.
#include <algorithm>

#include "sim/program/expert_program.h"
#include "sim/program/loss_chunk.h"
#include "sim/program/low_precision.h"
#include "sim/program/program_writer.h"
#include "sim/program/real.h"

namespace shardwright::sim {

using enum Tensor;

namespace {

constexpr Tensor following(Tensor first, int n) {
  return static_cast<Tensor>(static_cast<int>(first) + n);
}

double saved(const KernelGroup& group, int i) {
  const auto index = static_cast<std::size_t>(i);
  return index < group.saved_bytes.size() ? group.saved_bytes[index] : 0;
}

}  // namespace

void ProgramWriter::size(Tensor tensor, double bytes, MemoryCategory category) {
  tensors_[tensor] = {static_cast<Bytes>(bytes), category};
}

/// What is a matrix of tokens in the compute type, and what a type of its own makes wider.
void ProgramWriter::size_layer() {
  const double t = f(shape_.tokens), w = f(width_);
  const Model local = model_of_rank(model_, shape_);
  for (int i = 1; i < kTensorCount; ++i) {
    const auto tensor = static_cast<Tensor>(i);
    const double tokens = is_of_own_tokens(tensor) ? f(shape_.sharded_tokens) : t;
    size(tensor, w * tokens * f(columns_of(tensor, local)));
  }
  // In fp8 backward keeps of a product's input what the product reads.
  const double input = narrows_inputs() ? saved_input_bytes(plan_) : w;
  for (const Tensor read : {kNorm1Out, kNorm2Out})
    size(read, input * sharded_elements(shape_.hidden));
  if (narrows_inputs()) {
    size(kActivationOut, input * elements(shape_.ffn));
    size(kAttentionCast, input * elements(shape_.attention_out_dim()));
  }
  for (const Tensor of_head_width : {kAttentionOut, kDAttention})
    size(of_head_width, w * elements(shape_.attention_out_dim()));
  if (model_.head_gate) {
    size(kAttentionGate, w * elements(shape_.heads));
    size(kGatedAttention, input * elements(shape_.attention_out_dim()));
  }
  if (model_.attention_gate) {
    size(kAttentionGate, w * elements(shape_.q_dim()));
    size(kGatedAttention, input * elements(shape_.q_dim()));
    size(kDQkv, w * elements(2 * shape_.q_dim() + 2 * shape_.kv_dim()));
    size(kQkv, w * elements(shape_.q_dim() + 2 * shape_.kv_dim()));
  }
  size_recurrence();
  size(kTokens, 8 * t);
  if (stack_.autocast) {
    constexpr double kFloat = 4;
    for (const Tensor residual : {kX, kXMid, kNorm1Out, kNorm2Out, kDX, kDXMid, kDNorm1, kDNorm2})
      size(residual, kFloat * sharded_elements(shape_.hidden));
    // Positions are fp32 and make keys so.
    size(kKeyValueCache, (kFloat + w) * elements(shape_.kv_dim()));
  }
  const double scores = elements(shape_.heads) * f(plan_.seq_len);
  size(kProbabilities, (stack_.parallel.score_bytes + w - 2) * scores);
  size(kAttentionStats, 4 * elements(shape_.heads));
}

void ProgramWriter::size_recurrence() {
  const Recurrence& r = shape_.recurrence;
  if (r.value_heads == 0) return;
  const double w = f(width_);
  for (const Tensor in : {kRecurrentIn, kDRecurrentIn}) size(in, w * elements(r.product_width()));
  for (const Tensor convolved : {kRecurrentConvolved, kDRecurrentConvolved})
    size(convolved, w * elements(r.convolved()));
  for (const Tensor out : {kRecurrentOut, kRecurrentGated, kDRecurrentOut, kDRecurrentGated})
    size(out, w * elements(r.value_width()));
  for (const Tensor latent : {kRecurrentLatent, kDRecurrentLatent})
    size(latent, w * elements(r.latent_width()));
  for (const Tensor up : {kRecurrentUp, kDRecurrentUp}) size(up, w * elements(r.up_width()));
  size(kRecurrentExchanged, w * elements(r.product_width() + r.up_width()));
}

/// What kernels of this stack keep for their own backward.
void ProgramWriter::size_saved() {
  const double t = f(shape_.sharded_tokens), c = f(shape_.hidden);
  for (int i = 0; i < 3; ++i) {
    const double statistics =
        i == 2 ? statistics_kept() * stack_.norm.saved_bytes_per_token * t : 0;
    size(following(kNorm1Saved0, i), saved(stack_.norm, i) * t * c + statistics);
    size(following(kNorm2Saved0, i), saved(stack_.norm, i) * t * c + statistics);
  }
  size(kQkNormSaved, stack_.norm.saved_bytes_per_token * elements(shape_.heads + shape_.kv_heads));
  for (int i = 0; i < 2; ++i)
    size(following(kActivationSaved0, i), saved(activation(), i) * elements(shape_.ffn));
  size(kLayerSaved, stack_.parallel.layer_saved_bytes * t * c);
}

/// Of the tokens whose logits exist at once. Static memory has room for one row in fp32: a device
/// that keeps logits so takes smaller chunks.
void ProgramWriter::size_loss() {
  const std::int64_t chunk = loss_chunk_tokens(plan_, stack_, shape_.tokens);
  const bool gathers = shape_.tp > 1 && !stack_.parallel.vocabulary_parallel_loss;
  const std::int64_t columns = gathers ? model_.vocab : shape_.vocab;
  const double logits = f(chunk) * f(columns);
  const auto of_loss = [&](Tensor tensor, double bytes) {
    size(tensor, bytes, MemoryCategory::kLoss);
  };
  const bool in_place = stack_.loss_chunk_tokens > 0;
  of_loss(kLogits,
          in_place ? f(std::max<std::int64_t>(width_ * chunk, 4) * columns) : f(width_) * logits);
  of_loss(kLossParts, f(kLossPartBytes * plan_.feature_parts() * chunk));
  of_loss(kDLogits, f(width_) * logits);
  of_loss(kLogitsFloat, 4 * logits);
  of_loss(kDLogitsFloat, 4 * logits);
  for (int i = 0; i < 2; ++i) of_loss(following(kLossSaved0, i), saved(stack_.loss, i) * logits);
}

/// What tensor, context and expert parallelism and latent vectors add.
void ProgramWriter::size_parallel() {
  const double w = f(width_), input = narrows_inputs() ? saved_input_bytes(plan_) : w;
  const RankShape& s = shape_;
  const bool apart = gathers_each() && keeps_gathered();  // each product keeps what it gathered
  size(kNorm1Gathered, (apart && !fused_qkv() ? 3 : 1) * input * elements(s.hidden));
  size(kNorm2Gathered,
       (apart && model_.gated_mlp && !fused_gate_up() ? 2 : 1) * input * elements(s.hidden));
  for (const Tensor whole : {kPartialSum, kDGathered, kDGatheredMid}) size(whole, gathered_bytes());
  std::int64_t norms = 0;
  for (const WeightShape& weight : weights_of(model_, ModelUnit::kDenseLayer))
    norms += weight.is_norm ? weight.elements() : 0;
  size(kNormGradients, f(gradient_width() * norms));
  if (s.tp > model_.kv_heads)
    size(kKeyValueGradients,
         f(gradient_width() * 2 * model_.kv_dim() * (model_.hidden + (model_.qkv_bias ? 1 : 0))));
  const double key_values = w * elements(s.kv_dim() + s.kv_heads * s.v_head_dim);
  switch (context_) {
    case ContextComm::kRing:  // one block is worked on while the next one comes
      size(kContextInput, 2 * key_values);
      if (stack_.parallel.context.ring_by_all_gather)
        size(kContextInput, w * elements(s.q_dim() + s.attention_out_dim()) * f(s.cp));
      break;
    case ContextComm::kAllGather:
      size(kContextInput, key_values * f(s.cp));
      break;
    case ContextComm::kAllToAll:
      size(kContextInput, key_values + w * elements(s.q_dim()));
      break;
  }
  if (const LatentAttention& latent = model_.latent; latent.kv_rank > 0) {
    const std::int64_t keys = latent.kv_rank + latent.rope_dim;
    const std::int64_t up = s.heads * (latent.nope_dim + latent.v_dim);
    for (const Tensor query : {kQueryLatent, kQueryLatentNorm})
      size(query, w * sharded_elements(latent.q_rank));
    for (const Tensor key : {kKeyLatent, kKeyLatentNorm}) size(key, w * sharded_elements(keys));
    size(kQueryLatentGathered, w * elements(latent.q_rank));
    size(kKeyLatentGathered, w * elements(keys));
    size(kKeyValueUp, w * elements(up));
    for (const Tensor heads : {kQRaw, kQ, kK}) size(heads, w * elements(s.q_dim()));
    size(kDQkv, w * elements(s.q_dim() + s.q_dim() + up));
    size(kDLatent, w * elements(std::max(latent.q_rank, keys)));
    const bool gathered = s.recurrence.value_heads > 0;  // beside layers of heads
    size(kDNorm1, w * (gathered ? elements(s.hidden) : sharded_elements(s.hidden)));
  }
  if (!model_.is_moe()) return;
  const ExpertShape e = expert_shape(model_, plan_, stack_);
  const double rows = e.all_rows(), gates = model_.gated_mlp ? 2 : 1;
  size(kRouterScores, 4 * e.tokens * f(model_.experts.count));
  const double sent = e.tokens * f(model_.experts.per_token);
  const double row = f(model_.expert_width());
  for (const Tensor own : {kRowsSent, kRowsReturned}) size(own, w * sent * row);
  for (const Tensor all : {kRowsArrived, kExpertOut, kDExpertOut, kDRows})
    size(all, w * rows * row);
  size(kRows, input * e.kept_rows * row);
  for (const Tensor latent : {kExpertLatent, kExpertLatentOut, kDExpertLatent})
    size(latent, w * e.tokens * f(model_.experts.latent));
  size(kExpertUp, w * gates * e.kept_rows * f(e.ffn));
  size(kDExpertUp, w * gates * rows * f(e.ffn));
  size(kExpertActivation, input * e.kept_rows * f(e.ffn));
  size(kDExpertActivation, w * rows * f(e.ffn));
  for (const Tensor up : {kSharedUp, kDSharedUp}) size(up, w * gates * elements(e.shared_ffn));
  size(kSharedActivation, input * elements(e.shared_ffn));
  size(kDSharedActivation, w * elements(e.shared_ffn));
}

}  // namespace shardwright::sim
