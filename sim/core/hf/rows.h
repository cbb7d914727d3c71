// SPDX-License-Identifier: Apache-2.0
// What a row of the table of families is made of: the sizes that all models have, with the keys and
// defaults of the family's configuration class (Shape), then steps in the order in which they are
// taken. A step states what all models of the family have, reads a key, or computes what follows
// from several; those that say what each layer is are in layer_kinds.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "sim/core/base/json_file.h"
#include "sim/core/hf/keys.h"
#include "sim/core/model.h"

namespace shardwright::hf {

/// Which layers have the window of files whose layer_types does not tell.
struct Windows {
  std::int64_t (*layers)(const JsonReader& config, const Model& m);
  bool used = true;         // use_sliding_window
  std::int64_t tokens = 0;  // sliding_window; 0: none
};
extern const Windows kEveryLayer, kNoLayer, kEverySecond, kBehindMaxWindowLayers;
/// All but each n-th layer, which sliding_window_pattern may say: those before it, or behind it.
extern const Windows kAllButFourth, kAllButFifth, kAllBehindFourth;
extern const Windows kOfGemma2, kOfGemma3, kOfFlint;

/// What a family calls its sizes; "": not read.
struct Keys {
  std::string_view hidden = "hidden_size", ffn = "intermediate_size", layers = "num_hidden_layers",
                   heads = "num_attention_heads", positions = "max_position_embeddings",
                   activation = "hidden_act", eps = "rms_norm_eps", theta = "rope_theta",
                   fraction = "partial_rotary_factor";
};

/// What a file means that lacks a key, and what else sizes depend on.
struct Shape {
  std::int64_t positions = 2048;
  double eps = 1e-6;
  std::string_view activation = "silu";
  bool tied = false;
  std::int64_t head_dim = 0;   // 0: hidden / heads
  std::int64_t ffn_ratio = 0;  // to the hidden size; 0: the key is required
  std::int64_t layers = 0;     // 0: the key is required
  double rotary = 1.0;         // what part of a head RoPE turns; 0: no RoPE
  bool layer_angles = false;   // RopeKeys
  bool angle_sections = false;
  bool plain_heads = false;  // as many of keys as of queries, of hidden / heads; no other keys
  bool mixes = false;        // layer_types says which layers attend, and a step reads it
  bool latent = false;       // attention, of DeepSeek's keys
  bool experts = false;
  Windows windows = kEveryLayer;
  Keys keys = {};
};
Model read_shape(const JsonReader& config, Shape shape);

using Step = std::function<void(const JsonReader& config, Model& m)>;
/// A step that takes no more than that.
using PlainStep = void(const JsonReader& config, Model& m);
Step in_turn(std::vector<Step> steps);

// What all models of the family have.

template <typename T>
Step sets(T Model::*member, std::type_identity_t<T> value) {
  return [=](const JsonReader&, Model& m) { m.*member = value; };
}

/// Something that a model or its experts have or have not.
class Trait {
 public:
  Trait(bool Model::*of_model) : of_model_(of_model) {}
  Trait(bool Experts::*of_experts) : of_experts_(of_experts) {}
  bool& of(Model& m) const { return of_model_ ? m.*of_model_ : m.experts.*of_experts_; }

 private:
  bool Model::*of_model_ = nullptr;
  bool Experts::*of_experts_ = nullptr;
};
Step has(std::vector<Trait> traits);
/// Why the executor does not run the family.
Step planned(std::string_view why);

// Keys that most have: `usual` is what a file means that lacks the key.

Step flag(std::string_view key, bool usual, std::vector<Trait> traits);
Step number(double Model::*member, std::string_view key, double usual,
            NumberRange<double> accepted);
/// A key that must be `neutral` or absent.
Step refuses(std::string_view key, double neutral = 0);
/// A key that must be this word or absent.
Step only(std::string_view key, std::string_view word);
/// Keys that say nothing, or nothing new.
Step passes_over(std::vector<std::string_view> keys);
/// attention_bias, of the four products of attention, alone or with mlp_bias, usually false.
Step attention_bias(bool usual = false);
PlainStep biases;
Step layer_norm(std::string_view eps_key, bool bias);
Step squared_relu(std::string_view key = "hidden_act");
/// Modules of multi-token prediction.
Step mtp(std::string_view key = "num_nextn_predict_layers");
/// The window of the layers that a step behind this one finds to have one.
Step window(std::int64_t usual);

// Experts.

/// The number of experts, and of those that a token passes. Transformers 5 gives some families the
/// key of mixtral.
Step routing(std::string_view count_key = "num_experts|num_local_experts",
             std::string_view per_token_key = "num_experts_per_tok");
/// Experts are as wide as the MLP, or as moe_intermediate_size says.
PlainStep experts_as_mlp, expert_width;
/// Shared experts: their width together, or their number.
Step shared_width(std::string_view key = "shared_expert_intermediate_size");
Step shared_experts(std::string_view key, std::int64_t usual);
/// Leading layers without experts: `usual`, or what first_k_dense_replace or mlp_layer_types says.
/// An error of too many names `blamed`.
Step dense_layers(std::int64_t usual, std::string_view blamed = "first_k_dense_replace");
std::int64_t leading_dense_layers(const JsonReader& config, std::int64_t usual);
/// Groups of experts, and to how many of them a token is bound.
Step groups(std::string_view key = "n_group");
/// The width that tokens are brought to before experts, where the file has the key.
Step latent_experts(std::string_view key);
/// decoder_sparse_step and mlp_only_layers, of which only leading layers can be told, or none.
PlainStep sparse_layers, no_dense_layers;
PlainStep interleaved_experts, experts_between_indices, experts_by_lists;
PlainStep shared_width_of_granite, mlp_of_prefix, mtp_of_minimax;

// What is computed.

/// phi3 counts the positions before the current one: 2047 in a model made for 2048.
PlainStep count_own_position;
/// llama4: chunks in all but every fourth layer.
PlainStep attend_in_chunks;
PlainStep scale_embedding, scale_embedding_of_mup, scale_scores_of_gemma, gemma_activation;
/// Of scores and logits; 0: none.
Step softcaps(double usual_attention, double usual_logit);
/// Embeddings for each layer are refused.
PlainStep no_layer_inputs;
PlainStep norms_of_hyperclovax, norms_of_stablelm, heads_of_falcon, heads_of_bigcode;
PlainStep gates_of_laguna;
/// Keys of LLM Foundry, which trains models that Transformers itself cannot: learned positions,
/// biases.
PlainStep mpt_attention, mpt_mlp, mpt_norms_and_biases;

}  // namespace shardwright::hf
