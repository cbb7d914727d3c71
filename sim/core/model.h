// SPDX-License-Identifier: Apache-2.0
// What is trained: the architecture of a decoder-only transformer, reduced to what arithmetic and
// memory depend on. Letters used across the project: B micro-batch, T sequence length, C hidden
// size, F ffn size, L layers, H query heads, Hkv key/value heads, D head dimension, V vocabulary, W
// ranks.
//
// It leaves out weights, tokenizers and generation. sim/core/hf_config.h fills it from a
// config.json.
#pragma once

#include <cstdint>
#include <string>

namespace shardwright {

enum class Normalization { kRmsNorm, kLayerNorm };
enum class Activation { kSilu, kGelu, kGeluTanh, kRelu };
enum class Position { kRope, kLearned, kAlibi };
/// Yarn and longrope are planned only: they change angles, and angles cost nothing.
enum class RopeScaling { kNone, kLinear, kLlama3, kYarn, kLongrope };

struct Rope {
  double theta = 10000.0;
  double rotary_fraction = 1.0;  // share of each head that is rotated (gpt_neox: 0.25, phi3: 1)
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;  // for linear and llama3
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_positions = 8192;
};

struct Model {
  std::string name;    // as given by the user: a built-in name or the folder's name
  std::string family;  // Hugging Face model_type: llama, mistral, qwen2, ...
  /// What keeps the executor from running a model that can be planned, as in "model 'x' has ...";
  /// empty: nothing that the reader of the config knows of.
  std::string planning_only;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  std::int64_t max_positions = 0;
  std::int64_t sliding_window = 0;  // most tokens that some layer attends to; 0: all. Only full
                                    // attention is modelled: check_plan refuses longer sequences

  bool gated_mlp = true;  // gate, up and down matrices instead of up and down
  Activation activation = Activation::kSilu;
  Normalization norm = Normalization::kRmsNorm;
  int norms_per_layer = 2;  // gemma2 has 4
  bool norm_bias = false;   // LayerNorm with bias
  bool qkv_bias = false;    // qwen2
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;        // qwen3: RMSNorm of size head_dim on q and on k
  bool qk_norm_whole = false;  // with a weight for every channel of all heads (olmo2, cohere)
  bool fused_qkv = false;      // stored and multiplied as one matrix (gpt2, gpt_neox, mpt, phi3)
  bool fused_gate_up = false;  // phi3
  bool parallel_residual = false;  // gpt_neox: attention and MLP read the same residual
  bool tied_head = false;
  Position position = Position::kRope;
  Rope rope;
  double norm_eps = 1e-5;
  double attention_scale = 0.0;  // of the scores, where it is not 1/sqrt(head_dim); 0 is the usual
  double attention_softcap = 0.0;  // gemma2; 0 is none
  double logit_softcap = 0.0;
  double embedding_scale = 1.0;  // gemma: sqrt(hidden)

  std::int64_t q_dim() const { return heads * head_dim; }
  std::int64_t kv_dim() const { return kv_heads * head_dim; }
};

/// Parameter counts by the place where sharding treats them differently. All exact.
struct ParameterCounts {
  std::int64_t embedding = 0;       // V*C
  std::int64_t positions = 0;       // learned position rows
  std::int64_t layer_matrices = 0;  // weight matrices of one layer
  std::int64_t layer_biases = 0;
  std::int64_t layer_norms = 0;  // norm weights and biases of one layer
  std::int64_t final_norm = 0;
  std::int64_t head = 0;  // 0 when tied

  std::int64_t layer() const { return layer_matrices + layer_biases + layer_norms; }
  std::int64_t total(std::int64_t layers) const {
    return embedding + positions + layers * layer() + final_norm + head;
  }
};

ParameterCounts count_parameters(const Model& model);

/// Floating-point operations of the forward pass per token of a sequence of `seq_len`. Matrix
/// products count 2 per weight (embedding look-ups none, the head also when tied); causal attention
/// counts half of the square, 2*seq_len*q_dim per layer, as usual for MFU. Training is three times
/// this.
struct ForwardFlops {
  double matrices = 0;
  double attention = 0;
  double total() const { return matrices + attention; }
};
ForwardFlops forward_flops_per_token(const Model& model, std::int64_t seq_len);

/// The largest sizes that check_model accepts: far above any model, small enough that byte counts
/// of a step stay within int64.
namespace model_limits {
inline constexpr std::int64_t kLayers = 1 << 14;
inline constexpr std::int64_t kHidden = 1 << 18;
inline constexpr std::int64_t kHeads = 1 << 13;
inline constexpr std::int64_t kHeadDim = 1 << 13;
inline constexpr std::int64_t kProjection = 1 << 20;  // heads * head_dim
inline constexpr std::int64_t kFfn = 1 << 21;
inline constexpr std::int64_t kVocab = 1 << 24;
inline constexpr std::int64_t kPositions = 1 << 30;
inline constexpr std::int64_t kParameters = 100'000'000'000'000;
}  // namespace model_limits

/// Throws Error naming the field when sizes are zero, negative, too large or do not divide.
void check_model(const Model& model);

}  // namespace shardwright
