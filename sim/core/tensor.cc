// SPDX-License-Identifier: Apache-2.0
#include "sim/core/tensor.h"

#include <array>

#include "sim/core/model.h"

namespace shardwright {

namespace {

constexpr std::array<std::string_view, kTensorCount> kNames = {"",
                                                               "tokens",
                                                               "x",
                                                               "norm1_saved0",
                                                               "norm1_saved1",
                                                               "norm1_saved2",
                                                               "norm1_out",
                                                               "qkv",
                                                               "q_raw",
                                                               "k_raw",
                                                               "q",
                                                               "k",
                                                               "v",
                                                               "k_repeated",
                                                               "v_repeated",
                                                               "probabilities",
                                                               "attention_out",
                                                               "attention_stats",
                                                               "qk_norm_saved",
                                                               "projected",
                                                               "x_mid",
                                                               "norm2_saved0",
                                                               "norm2_saved1",
                                                               "norm2_saved2",
                                                               "norm2_out",
                                                               "gate_up",
                                                               "gate",
                                                               "up",
                                                               "activation_saved0",
                                                               "activation_saved1",
                                                               "activation_out",
                                                               "down",
                                                               "logits",
                                                               "logits_fp32",
                                                               "loss_saved0",
                                                               "loss_saved1",
                                                               "loss_parts",
                                                               "layer_saved",
                                                               "norm1_gathered",
                                                               "norm2_gathered",
                                                               "partial_sum",
                                                               "context_input",
                                                               "query_latent",
                                                               "query_latent_norm",
                                                               "query_latent_gathered",
                                                               "key_latent",
                                                               "key_latent_norm",
                                                               "key_latent_gathered",
                                                               "attention_cast",
                                                               "key_value_up",
                                                               "router_scores",
                                                               "rows_sent",
                                                               "rows_arrived",
                                                               "rows",
                                                               "expert_up",
                                                               "expert_activation",
                                                               "expert_out",
                                                               "rows_returned",
                                                               "experts_out",
                                                               "shared_up",
                                                               "shared_activation",
                                                               "recurrent_in",
                                                               "recurrent_convolved",
                                                               "recurrent_latent",
                                                               "recurrent_up",
                                                               "recurrent_exchanged",
                                                               "recurrent_out",
                                                               "recurrent_gated",
                                                               "recurrent_projected",
                                                               "expert_latent",
                                                               "expert_latent_out",
                                                               "attention_gate",
                                                               "gated_attention",
                                                               "d_x",
                                                               "d_activation",
                                                               "d_gate_up",
                                                               "d_norm2",
                                                               "d_x_mid",
                                                               "d_attention",
                                                               "d_qkv",
                                                               "d_norm1",
                                                               "d_logits",
                                                               "d_logits_fp32",
                                                               "d_gathered",
                                                               "d_gathered_mid",
                                                               "d_norm_sum",
                                                               "norm_gradients",
                                                               "key_value_gradients",
                                                               "d_latent",
                                                               "d_expert_out",
                                                               "d_rows",
                                                               "d_expert_activation",
                                                               "d_expert_up",
                                                               "d_shared_activation",
                                                               "d_shared_up",
                                                               "d_recurrent_in",
                                                               "d_recurrent_convolved",
                                                               "d_recurrent_latent",
                                                               "d_recurrent_up",
                                                               "d_expert_latent",
                                                               "d_recurrent_out",
                                                               "d_recurrent_gated",
                                                               "weight_gradient0",
                                                               "weight_gradient1",
                                                               "weight_gradient2",
                                                               "weight_gradient3",
                                                               "weight_gradient4",
                                                               "weight_gradient5",
                                                               "weight_gradient6",
                                                               "weight_gradient7",
                                                               "weight_gradient8",
                                                               "weight_gradient9",
                                                               "weight_gradient10",
                                                               "weight_gradient11",
                                                               "weight_gradient12",
                                                               "weight_gradient13",
                                                               "weight_gradient14",
                                                               "weight_gradient15",
                                                               "weight_gradient16",
                                                               "weight_gradient17",
                                                               "weight_gradient18",
                                                               "weight_gradient19",
                                                               "weight_gradient20",
                                                               "weight_gradient21",
                                                               "weight_gradient22",
                                                               "weight_gradient23",
                                                               "temporary",
                                                               "gathered",
                                                               "gather_output",
                                                               "casted_shard",
                                                               "secondary_shard",
                                                               "flat_gradient",
                                                               "reduce_input",
                                                               "reduce_output",
                                                               "shard_gradient",
                                                               "full_gradient",
                                                               "optimizer_temporary",
                                                               "key_value_cache",
                                                               "offloaded"};

}  // namespace

std::string_view name_of(Tensor tensor) {
  return kNames[index_of(tensor)];
}

std::int64_t columns_of(Tensor tensor, const Model& model) {
  switch (tensor) {
    case Tensor::kX:
    case Tensor::kXMid:
    case Tensor::kNorm1Out:
    case Tensor::kNorm2Out:
    case Tensor::kProjected:
    case Tensor::kDown:
    case Tensor::kDX:
    case Tensor::kDXMid:
    case Tensor::kDNormSum:
    case Tensor::kExpertsOut:
    case Tensor::kNorm1Gathered:
    case Tensor::kNorm2Gathered:
    case Tensor::kPartialSum:
    case Tensor::kDGathered:
    case Tensor::kDGatheredMid:
    case Tensor::kDNorm1:
    case Tensor::kDNorm2:
    case Tensor::kRecurrentProjected:
      return model.hidden;
    case Tensor::kQkv:
    case Tensor::kDQkv:
      return model.query_rows() + model.key_value_rows();
    case Tensor::kQ:
    case Tensor::kQRaw:
    case Tensor::kKRepeated:
    case Tensor::kVRepeated:
    case Tensor::kAttentionOut:
    case Tensor::kDAttention:
      return model.q_dim();
    case Tensor::kK:
    case Tensor::kKRaw:
    case Tensor::kV:
      return model.kv_dim();
    case Tensor::kKeyValueCache:
      return 2 * model.kv_dim();
    case Tensor::kGateUp:
      return 2 * model.ffn;
    case Tensor::kDGateUp:
      return (model.gated_mlp ? 2 : 1) * model.ffn;
    case Tensor::kGate:
    case Tensor::kUp:
    case Tensor::kActivationOut:
    case Tensor::kDActivation:
      return model.ffn;
    case Tensor::kLogits:
    case Tensor::kDLogits:
      return model.vocab;
    default:
      return 0;
  }
}

}  // namespace shardwright
