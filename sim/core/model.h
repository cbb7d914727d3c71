// SPDX-License-Identifier: Apache-2.0
// What is trained: the architecture of a decoder-only transformer, reduced to what arithmetic and
// memory depend on. Letters used across the project: B micro-batch, T sequence length, C hidden
// size, F ffn size, L layers, H query heads, Hkv key/value heads, D head dimension, V vocabulary, W
// ranks.
//
// It leaves out weights, tokenizers and generation. sim/core/hf/config.h fills it from a
// config.json.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/recurrence.h"

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
  bool operator==(const Rope&) const = default;
};

/// Routed experts in place of the MLP in some or all layers. A router, one row of weights an
/// expert, sends every token to `per_token` of them; shared experts see all tokens.
struct Experts {
  std::int64_t count = 0;             // of one layer; 0: the model is dense
  std::int64_t per_token = 0;         // experts that a token passes
  std::int64_t ffn = 0;               // of one expert; Model::ffn is that of layers without experts
  std::int64_t shared_ffn = 0;        // of the shared experts together; 0: none
  std::int64_t first_layer = 0;       // the first layer with experts, counted from 0
  std::int64_t every = 1;             // from there on each n-th layer has experts
  std::int64_t groups = 1;            // of experts (deepseek: one a node) ...
  std::int64_t groups_per_token = 1;  // ... and how many of them a token may reach
  bool shared_gate = false;           // qwen2_moe: the shared expert is weighed by hidden -> 1
  bool router_bias = false;           // one number an expert, learned or set to balance them
  bool bias = false;                  // gpt_oss: in the products of every expert
  std::int64_t latent =
      0;  // nemotron_h: width that tokens are brought to before experts; 0: hidden
  bool operator==(const Experts&) const = default;
};

/// Multi-head latent attention (DeepSeek-V2): queries, and keys with values, are projected down to
/// a latent vector, normalised, and up to all heads. A head's query and key are nope_dim + rope_dim
/// wide, of which all heads share the rotated part of the key; its value is v_dim wide.
struct LatentAttention {
  std::int64_t kv_rank = 0;  // 0: ordinary attention
  std::int64_t q_rank = 0;   // 0: queries are projected in one product
  std::int64_t nope_dim = 0;
  std::int64_t rope_dim = 0;
  std::int64_t v_dim = 0;
  bool operator==(const LatentAttention&) const = default;
};

/// The halves of a layer. kParallel: attention and a recurrence read one norm, and what they put
/// out is added up (falcon_h1).
enum class Mixer : std::uint8_t { kAttention, kRecurrence, kNone, kParallel };
enum class Channels : std::uint8_t { kMlp, kExperts, kNone };
inline constexpr std::size_t kMostForms = 3;  // 0: as the model says
struct LayerKind {
  Mixer mixer = Mixer::kAttention;
  Channels channels = Channels::kMlp;
  std::uint8_t form = 0;  // of its attention: 1 for the first of Model::forms

  bool attends() const { return mixer == Mixer::kAttention || mixer == Mixer::kParallel; }
  bool recurs() const { return mixer == Mixer::kRecurrence || mixer == Mixer::kParallel; }
  std::size_t index() const {
    return 12 * std::size_t{form} + 3 * static_cast<std::size_t>(mixer) +
           static_cast<std::size_t>(channels);
  }
  static LayerKind at(std::size_t index) {
    return {static_cast<Mixer>(index / 3 % 4), static_cast<Channels>(index % 3),
            static_cast<std::uint8_t>(index / 12)};
  }
  bool operator==(const LayerKind&) const = default;
};
inline constexpr std::size_t kLayerKinds = 12 * kMostForms;

/// Attention of layers whose heads are not those of the model (gemma4: full and windowed layers).
struct LayerForm {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool windowed = false;
  bool values_are_keys = false;
  bool operator==(const LayerForm&) const = default;
};

struct Model {
  std::string name;    // as given by the user: a built-in name or the folder's name
  std::string family;  // Hugging Face model_type: llama, mistral, qwen2, ...
  /// What keeps the executor from running a model that can be planned, as in "model 'x' has ...";
  /// empty: nothing that the reader of the config knows of.
  std::string planning_only;
  /// Dropout that its config asks for, as "attention_dropout is 0.1"; empty: none. Not modelled:
  /// plans are made without it, and the executor refuses it.
  std::string dropout;
  /// Keys of its config that are neither modelled nor known to change nothing.
  std::vector<std::string> ignored_keys;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;  // of queries and keys
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  std::int64_t max_positions = 0;
  std::int64_t sliding_window = 0;   // most tokens that windowed layers attend to; 0: all
  std::int64_t windowed_layers = 0;  // how many layers have the window, spread evenly
  bool chunked_attention = false;    // llama4: windows do not slide, they end where the next begins
  bool attention_sinks = false;      // gpt_oss: one more score a head, learned
  Experts experts;
  LatentAttention latent;
  Recurrence recurrence;
  std::vector<LayerKind> kinds;  // by layer; empty: all attend, and have experts or an MLP
  std::vector<LayerForm> forms;  // of attention where layers differ; their windows count alone
  bool attention_gate = false;   // qwen3_next: of every channel that attention puts out
  bool head_gate = false;        // bailing_hybrid: of every head
  bool value_norm = false;       // gemma4: values are normalised, without weights
  bool values_are_keys = false;  // gemma4: one product makes both
  std::int64_t mtp_layers = 0;   // modules of multi-token prediction after the last layer

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
  double embedding_scale = 1.0;     // gemma: sqrt(hidden)
  double initial_deviation = 0.02;  // standard deviation of initial matrices: initializer_range
  bool operator==(const Model&) const = default;

  std::int64_t q_dim() const { return heads * head_dim; }
  std::int64_t kv_dim() const { return kv_heads * head_dim; }
  /// Width of what attention puts out, all heads together.
  std::int64_t attention_out_dim() const {
    return latent.kv_rank > 0 ? heads * latent.v_dim : q_dim();
  }
  bool is_moe() const { return experts.count > 0; }
  /// Of a token as experts take it.
  std::int64_t expert_width() const { return experts.latent > 0 ? experts.latent : hidden; }
  std::int64_t key_value_rows() const { return (values_are_keys ? 1 : 2) * kv_dim(); }
  /// Channels of the product of queries: with their gates.
  std::int64_t query_rows() const { return (attention_gate ? 2 : 1) * q_dim(); }
  /// All layers are alike, and none has experts.
  bool is_plain() const { return !is_moe() && kinds.empty(); }
  LayerKind kind(std::int64_t layer) const {
    if (!kinds.empty()) return kinds[static_cast<std::size_t>(layer)];
    return {Mixer::kAttention, has_experts(layer) ? Channels::kExperts : Channels::kMlp};
  }
  /// Of the layer that a module of multi-token prediction holds.
  LayerKind mtp_kind() const {
    return {Mixer::kAttention, is_moe() ? Channels::kExperts : Channels::kMlp};
  }
  bool has_experts(std::int64_t layer) const {
    if (!kinds.empty()) return kind(layer).channels == Channels::kExperts;
    return is_moe() && layer >= experts.first_layer &&
           (layer - experts.first_layer) % experts.every == 0;
  }
  std::int64_t expert_layers() const {
    if (!kinds.empty()) {
      return std::count_if(kinds.begin(), kinds.end(),
                           [](LayerKind k) { return k.channels == Channels::kExperts; });
    }
    if (!is_moe() || layers <= experts.first_layer) return 0;
    return (layers - experts.first_layer - 1) / experts.every + 1;
  }
};

/// Those that the model may have, each once.
std::vector<LayerKind> kinds_of(const Model& model);

/// The model with the heads of such a layer's attention, and with its window in all layers or none.
Model model_of_layer(const Model& model, LayerKind kind);

/// Scores that attention computes for a sequence of `seq_len` over those of plain causal attention,
/// seq_len^2 / 2 a head: the mean over the layers, of which some may have a window.
double attended_share(const Model& model, std::int64_t seq_len);

/// Parameter counts by the place where sharding treats them differently. All exact.
struct ParameterCounts {
  std::int64_t embedding = 0;       // V*C
  std::int64_t positions = 0;       // learned position rows
  std::int64_t layer_matrices = 0;  // weight matrices of one layer without experts
  std::int64_t layer_biases = 0;
  std::int64_t layer_norms = 0;  // norm weights and biases of one layer
  std::int64_t final_norm = 0;
  std::int64_t head = 0;  // 0 when tied
  // Of models with experts.
  std::int64_t expert_layers = 0;   // layers that have experts
  std::int64_t dense_mlp = 0;       // what such a layer lacks of one without experts
  std::int64_t router = 0;          // with its bias and the gate of a shared expert
  std::int64_t shared_experts = 0;  // of one layer
  std::int64_t expert = 0;          // one routed expert
  std::int64_t experts = 0;         // all routed experts of one layer
  std::int64_t active_experts = 0;  // those that one token passes in one layer
  std::int64_t mtp = 0;             // modules of multi-token prediction, beside the total
  // Of models whose layers have kinds: of all layers together.
  std::int64_t all_layers = 0;

  std::int64_t layer() const { return layer_matrices + layer_biases + layer_norms; }
  std::int64_t expert_layer() const {
    return layer() - dense_mlp + router + shared_experts + experts;
  }
  std::int64_t total(std::int64_t layers) const {
    const std::int64_t of_layers =
        all_layers > 0 ? all_layers
                       : (layers - expert_layers) * layer() + expert_layers * expert_layer();
    return embedding + positions + of_layers + final_norm + head;
  }
  /// What takes part in the prediction of one token, embedding and head included.
  std::int64_t active(std::int64_t layers) const {
    return total(layers) - expert_layers * (experts - active_experts);
  }
};

ParameterCounts count_parameters(const Model& model);

/// Floating-point operations of the forward pass per token of a sequence of `seq_len`. Matrix
/// products count 2 per weight that the token meets (embedding look-ups none, the head also when
/// tied, of experts those it is routed to, modules of multi-token prediction with their use of the
/// head); causal attention counts half of the square, 2*seq_len*q_dim per layer, as usual for MFU,
/// and of a window only what it attends to; recurrences count Recurrence::flops. Training is three
/// times this.
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
inline constexpr std::int64_t kExperts = 1 << 14;  // of one layer
inline constexpr std::int64_t kParameters = 100'000'000'000'000;
}  // namespace model_limits

/// Throws Error naming the field when sizes are zero, negative, too large or do not divide.
void check_model(const Model& model);

}  // namespace shardwright
