// SPDX-License-Identifier: Apache-2.0
#include "sim/core/hf/rows.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "sim/core/hf/config.h"

namespace shardwright::hf {
namespace {

/// How many layers layer_types lists as windowed; none when the key is absent.
std::optional<std::int64_t> listed_windows(const JsonReader& config) {
  const auto types = config.find_array("layer_types");
  if (!types) return std::nullopt;
  std::int64_t windowed = 0;
  for (const JsonReader& type : *types) {
    const std::string name = type.value<std::string>();
    if (name != "full_attention" && name != "attention" && name != "sliding_attention" &&
        name != "chunked_attention") {
      type.fail(
          "full_attention, sliding_attention or chunked_attention, because others are not "
          "modelled");
    }
    windowed += name == "full_attention" || name == "attention" ? 0 : 1;
  }
  return windowed;
}

void set_sliding_window(const JsonReader& config, Model& m, const Windows& windows) {
  const std::optional<std::int64_t> listed = listed_windows(config);
  const bool used = config.optional<bool>("use_sliding_window", windows.used);
  // A window that is not used may be 0.
  const auto window =
      config.find<std::int64_t>("sliding_window", between<std::int64_t>(used ? 1 : 0, kPositions));
  if (!used) return;
  const std::int64_t layers = std::min(m.layers, listed ? *listed : windows.layers(config, m));
  if (layers == 0) return;
  m.sliding_window = present(config, "sliding_window") ? window.value_or(0) : windows.tokens;
  m.windowed_layers = m.sliding_window > 0 ? layers : 0;
}

void set_heads(const JsonReader& config, Model& m, const Shape& shape) {
  m.kv_heads = m.heads = size(config, shape.keys.heads, kHeads);
  if (!shape.plain_heads) {
    m.kv_heads = size_or(config, "num_key_value_heads", m.heads, kHeads);
    if (m.heads % m.kv_heads != 0) {
      config.fail("num_key_value_heads",
                  fmt::format("a divisor of the {} num_attention_heads", m.heads));
    }
    m.head_dim = shape.head_dim;
    if (config.has("head_dim")) m.head_dim = size(config, "head_dim", kHeadDim);
  }
  if (m.head_dim > 0) return;
  if (m.hidden % m.heads != 0)
    config.fail(shape.keys.heads, fmt::format("a divisor of the hidden size {}", m.hidden));
  m.head_dim = m.hidden / m.heads;
}

/// Throws Error naming the key where no layer is left to have experts.
void check_first_layer(const JsonReader& config, const Model& m, std::string_view key) {
  if (m.experts.first_layer < m.layers) return;
  config.fail(key, fmt::format("less than the {} layers, so that some have experts", m.layers));
}

LatentAttention read_latent(const JsonReader& config) {
  LatentAttention latent;
  latent.kv_rank = size(config, "kv_lora_rank", kHidden);
  if (config.has("q_lora_rank")) latent.q_rank = size(config, "q_lora_rank", kHidden);
  latent.nope_dim = size(config, "qk_nope_head_dim", kHeadDim);
  latent.rope_dim = size(config, "qk_rope_head_dim", kHeadDim);
  latent.v_dim = size(config, "v_head_dim", kHeadDim);
  return latent;
}

/// A number, or a list that gives each layer the same.
std::int64_t same_in_layers(const JsonReader& config, std::string_view either, std::int64_t most) {
  const std::string_view key = key_of(config, either);
  if (!config.has(key) || !config.raw()[std::string(key)].is_array())
    return size(config, key, most);
  const std::vector<JsonReader> layers = config.require_array(key);
  std::vector<std::int64_t> values;
  for (const JsonReader& value : layers) {
    values.push_back(value.value<std::int64_t>(between<std::int64_t>(1, most)));
    if (values.back() != values.front())
      value.fail(
          fmt::format("{} as in the first layer, because others are not modelled", values.front()));
  }
  if (values.empty()) config.fail(key, "a number for every layer");
  return values.front();
}

template <std::int64_t Usual>
std::int64_t all_but_nth(const JsonReader& config, const Model& m) {
  return m.layers - m.layers / size_or(config, "sliding_window_pattern", Usual, kLayers);
}

template <std::int64_t Usual>
std::int64_t all_behind_nth(const JsonReader& config, const Model& m) {
  const std::int64_t n = size_or(config, "sliding_window_pattern", Usual, kLayers);
  return m.layers - (m.layers + n - 1) / n;
}

std::int64_t every_second(const JsonReader&, const Model& m) {
  return (m.layers + 1) / 2;
}

}  // namespace

const Windows kEveryLayer = {[](const JsonReader&, const Model& m) { return m.layers; }};
const Windows kBehindMaxWindowLayers = {
    [](const JsonReader& config, const Model& m) {
      return std::max<std::int64_t>(
          0, m.layers - config.optional<std::int64_t>("max_window_layers", 28));
    },
    false};

const Windows kNoLayer = {[](const JsonReader&, const Model&) { return std::int64_t{0}; }};
const Windows kEverySecond = {every_second}, kOfGemma2 = {every_second, true, 4096};
const Windows kAllButFourth = {all_but_nth<4>}, kAllButFifth = {all_but_nth<5>},
              kOfGemma3 = {all_but_nth<6>, true, 4096}, kAllBehindFourth = {all_behind_nth<4>};
// The first two see all, every fourth, and the last one.
const Windows kOfFlint = {[](const JsonReader&, const Model& m) {
  return m.layers - ((m.layers + 2) / 4 + 1 + (m.layers % 4 == 2 ? 0 : 1));
}};

Model read_shape(const JsonReader& config, Shape shape) {
  Model m;
  if (shape.latent) {
    m.latent = read_latent(config);
    // RoPE turns only its own part of a head; some files call that part head_dim.
    shape.head_dim = m.latent.rope_dim;
  }
  m.hidden = size(config, shape.keys.hidden, kHidden);
  if (shape.ffn_ratio > 0) {
    m.ffn = size_or(config, shape.keys.ffn, shape.ffn_ratio * m.hidden, kFfn);
  } else if (!shape.keys.ffn.empty()) {
    m.ffn = size(config, shape.keys.ffn, kFfn);
  }
  m.layers = shape.layers > 0 ? size_or(config, shape.keys.layers, shape.layers, kLayers)
                              : size(config, shape.keys.layers, kLayers);
  if (!shape.keys.heads.empty()) set_heads(config, m, shape);
  m.vocab = size(config, "vocab_size", kVocab);
  m.max_positions = shape.positions;
  if (!shape.keys.positions.empty())
    m.max_positions = size_or(config, shape.keys.positions, shape.positions, kPositions);
  if (!shape.mixes) set_sliding_window(config, m, shape.windows);
  if (!shape.keys.activation.empty())
    m.activation = activation(config, shape.keys.activation, shape.activation);
  m.norm_eps = config.optional(key_of(config, shape.keys.eps), shape.eps, above(0.0));
  m.tied_head = config.optional<bool>("tie_word_embeddings", shape.tied);
  if (shape.rotary > 0) {
    m.rope = read_rope(config, m.head_dim,
                       {shape.keys.theta, shape.keys.fraction, shape.rotary, shape.layer_angles,
                        shape.angle_sections});
  }
  if (!shape.latent) return m;
  m.head_dim = m.latent.nope_dim + m.latent.rope_dim;
  if (m.kv_heads != m.heads) {
    config.fail("num_key_value_heads",
                fmt::format("{}, because latent attention gives each head its key", m.heads));
  }
  refuse(config, "attention_bias");
  return m;
}

Step in_turn(std::vector<Step> steps) {
  return [steps = std::move(steps)](const JsonReader& config, Model& m) {
    for (const Step& step : steps) step(config, m);
  };
}

Step planned(std::string_view why) {
  return [why](const JsonReader&, Model& m) { m.planning_only = why; };
}

Step has(std::vector<Trait> traits) {
  return [traits = std::move(traits)](const JsonReader&, Model& m) {
    for (const Trait& trait : traits) trait.of(m) = true;
  };
}

Step flag(std::string_view key, bool usual, std::vector<Trait> traits) {
  return [key, usual, traits = std::move(traits)](const JsonReader& config, Model& m) {
    const bool set = config.optional<bool>(key, usual);
    for (const Trait& trait : traits) trait.of(m) = set;
  };
}

Step number(double Model::*member, std::string_view key, double usual,
            NumberRange<double> accepted) {
  return [=](const JsonReader& config, Model& m) {
    m.*member = config.optional<double>(key, usual, accepted);
  };
}

Step attention_bias(bool usual) {
  return flag("attention_bias", usual, {&Model::qkv_bias, &Model::attention_out_bias});
}

void biases(const JsonReader& config, Model& m) {
  attention_bias()(config, m);
  m.mlp_bias = config.optional<bool>("mlp_bias", false);
}

Step refuses(std::string_view key, double neutral) {
  return [key, neutral](const JsonReader& config, Model&) { refuse(config, key, neutral); };
}

Step only(std::string_view key, std::string_view word) {
  return [key, word](const JsonReader& config, Model&) {
    if (config.has(key)) config.require_choice(key, {word});
  };
}

Step passes_over(std::vector<std::string_view> keys) {
  return [keys = std::move(keys)](const JsonReader& config, Model&) {
    for (const std::string_view key : keys) static_cast<void>(config.has(key));
  };
}

Step window(std::int64_t usual) {
  return [usual](const JsonReader& config, Model& m) {
    m.sliding_window = size_or(config, "sliding_window", usual, kPositions);
  };
}

Step layer_norm(std::string_view eps_key, bool bias) {
  return [eps_key, bias](const JsonReader& config, Model& m) {
    m.norm = Normalization::kLayerNorm;
    m.norm_bias = bias;
    m.norm_eps = config.optional(eps_key, 1e-5, above(0.0));
  };
}

Step squared_relu(std::string_view key) {
  return [key](const JsonReader& config, Model& m) {
    config.require_choice(key, {"relu2"});
    m.gated_mlp = false;
    m.activation = Activation::kRelu;
  };
}

Step mtp(std::string_view key) {
  return [key](const JsonReader& config, Model& m) { m.mtp_layers = count_or(config, key, 0, 16); };
}

Step routing(std::string_view count_key, std::string_view per_token_key) {
  return [count_key, per_token_key](const JsonReader& config, Model& m) {
    const std::string_view count = key_of(config, count_key);
    const std::string_view per_token = key_of(config, per_token_key);
    m.experts.count = size(config, count, kExperts);
    m.experts.per_token = size(config, per_token, kExperts);
    if (m.experts.per_token > m.experts.count)
      config.fail(per_token, fmt::format("at most the {} of {}", m.experts.count, count));
  };
}

void experts_as_mlp(const JsonReader&, Model& m) {
  m.experts.ffn = m.ffn;
}

void expert_width(const JsonReader& config, Model& m) {
  m.experts.ffn = size(config, "moe_intermediate_size", kFfn);
}

Step shared_width(std::string_view key) {
  return
      [key](const JsonReader& config, Model& m) { m.experts.shared_ffn = size(config, key, kFfn); };
}

Step shared_experts(std::string_view key, std::int64_t usual) {
  return [key, usual](const JsonReader& config, Model& m) {
    m.experts.shared_ffn = m.experts.ffn * count_or(config, key, usual, 64);
  };
}

std::int64_t leading_dense_layers(const JsonReader& config, std::int64_t usual) {
  constexpr std::string_view kCount = "first_k_dense_replace";
  // Transformers 5: "dense" for leading layers, then "sparse".
  const auto types = config.find_array("mlp_layer_types");
  if (!types) return count_or(config, kCount, usual, kLayers);
  pass_over(config, {kCount});  // says the same
  std::int64_t dense = 0, at = 0;
  for (const JsonReader& type : *types) {
    const std::string name = type.value<std::string>();
    if (name != "dense" && name != "sparse") type.fail("dense or sparse");
    if (name == "dense" && dense != at) type.fail("dense in leading layers only");
    dense += name == "dense" ? 1 : 0;
    ++at;
  }
  return dense;
}

Step dense_layers(std::int64_t usual, std::string_view blamed) {
  return [usual, blamed](const JsonReader& config, Model& m) {
    m.experts.first_layer = leading_dense_layers(config, usual);
    check_first_layer(config, m, blamed);
  };
}

Step groups(std::string_view key) {
  return [key](const JsonReader& config, Model& m) {
    Experts& e = m.experts;
    e.groups = size_or(config, key, 1, e.count);
    e.groups_per_token = size_or(config, "topk_group", e.groups, e.groups);
  };
}

Step latent_experts(std::string_view key) {
  return [key](const JsonReader& config, Model& m) {
    if (config.has(key)) m.experts.latent = size(config, key, kHidden);
  };
}

void sparse_layers(const JsonReader& config, Model& m) {
  Experts& e = m.experts;
  e.every = size_or(config, "decoder_sparse_step", 1, m.layers);
  e.first_layer = e.every - 1;
  const auto dense = config.find_array("mlp_only_layers");
  if (!dense || dense->empty()) return;
  std::vector<std::int64_t> layers;
  for (const JsonReader& layer : *dense) layers.push_back(layer.value<std::int64_t>());
  std::sort(layers.begin(), layers.end());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] != static_cast<std::int64_t>(i) || e.every != 1)
      config.fail("mlp_only_layers", "leading layers, because others are not modelled");
  }
  e.first_layer = static_cast<std::int64_t>(layers.size());
  check_first_layer(config, m, "mlp_only_layers");
}

void no_dense_layers(const JsonReader& config, Model& m) {
  if (size_or(config, "decoder_sparse_step", 1, m.layers) != 1)
    config.fail("decoder_sparse_step", "1, because layers without experts are not modelled");
  const auto dense = config.find_array("mlp_only_layers");
  if (dense && !dense->empty())
    config.fail("mlp_only_layers", "none, because layers without experts are not modelled");
}

void interleaved_experts(const JsonReader& config, Model& m) {
  Experts& e = m.experts;
  e.ffn = e.shared_ffn = m.ffn;
  m.ffn = size(config, "intermediate_size_mlp", kFfn);
  e.every = size_or(config, "interleave_moe_layer_step", 1, m.layers);
  e.first_layer = e.every - 1;
  const auto listed = config.find_array("moe_layers");
  if (listed && static_cast<std::int64_t>(listed->size()) != m.expert_layers()) {
    config.fail("moe_layers",
                fmt::format("the {} layers of interleave_moe_layer_step, because others are not "
                            "modelled",
                            m.expert_layers()));
  }
}

void experts_between_indices(const JsonReader& config, Model& m) {
  Experts& e = m.experts;
  e.first_layer = count_or(config, "moe_layer_start_index", 1, kLayers);
  check_first_layer(config, m, "moe_layer_start_index");
  e.every = size_or(config, "moe_layer_interval", 1, m.layers);
  const std::int64_t last = config.optional<std::int64_t>("moe_layer_end_index", -1);
  if (last != -1 && last != m.layers - 1) {
    config.fail(
        "moe_layer_end_index",
        fmt::format("{}, because layers behind those with experts are not modelled", m.layers - 1));
  }
}

void experts_by_lists(const JsonReader& config, Model& m) {
  const auto listed = [&](std::string_view key, std::int64_t usual, std::int64_t most) {
    return config.has(key) ? same_in_layers(config, key, most) : usual;
  };
  Experts& e = m.experts;
  e.count = same_in_layers(config, "num_experts|num_local_experts", kExperts);
  e.per_token = same_in_layers(config, "moe_topk|num_experts_per_tok", e.count);
  e.ffn = listed("moe_intermediate_size", m.ffn, kFfn);
  e.shared_ffn = m.ffn * listed("num_shared_expert", 1, 64);
}

void shared_width_of_granite(const JsonReader& config, Model& m) {
  m.experts.shared_ffn = count_or(config, "shared_intermediate_size", 0, kFfn);
}

void mlp_of_prefix(const JsonReader& config, Model& m) {
  m.ffn = size_or(config, "prefix_dense_intermediate_size", m.ffn, kFfn);
}

void mtp_of_minimax(const JsonReader& config, Model& m) {
  if (!config.optional<bool>("use_mtp", false)) return;
  m.mtp_layers = count_or(config, "num_mtp_modules", 0, 16);
  m.mtp_layers *= count_or(config, "mtp_transformer_layers", 1, 16);
}

// What is computed.

void count_own_position(const JsonReader&, Model& m) {
  if (m.sliding_window > 0) ++m.sliding_window;
}

// Norms of queries and keys have no weights. Every fourth layer has no RoPE and sees everything;
// the others see the chunk that they are in.
void attend_in_chunks(const JsonReader& config, Model& m) {
  if (present(config, "attention_chunk_size") && !config.has("attention_chunk_size")) return;
  m.sliding_window = size_or(config, "attention_chunk_size", 8192, kPositions);
  m.chunked_attention = true;
  m.windowed_layers = m.layers - m.layers / size_or(config, "no_rope_layer_interval", 4, kLayers);
  const auto rotated = config.find_array("no_rope_layers");
  if (!rotated || rotated->empty()) return;
  m.windowed_layers = std::count_if(rotated->begin(), rotated->end(), [](const JsonReader& layer) {
    return layer.value<std::int64_t>(between<std::int64_t>(0, 1)) == 1;
  });
  m.windowed_layers = std::min(m.windowed_layers, m.layers);
}

void scale_embedding(const JsonReader&, Model& m) {
  m.embedding_scale = std::sqrt(static_cast<double>(m.hidden));
}

void scale_embedding_of_mup(const JsonReader& config, Model& m) {
  if (config.optional<bool>("mup_enabled", false)) scale_embedding(config, m);
}

// Files that say "gelu" mean the tanh form; hidden_activation, where given, is what counts.
void gemma_activation(const JsonReader& config, Model& m) {
  if (m.activation == Activation::kGelu) m.activation = Activation::kGeluTanh;
  if (config.has("hidden_activation")) m.activation = activation(config, "hidden_activation", "");
}

Step softcaps(double usual_attention, double usual_logit) {
  return [=](const JsonReader& config, Model& m) {
    // Off when null, and the class's default when absent.
    const auto read = [&](std::string_view key, double usual) {
      return present(config, key) ? config.optional<double>(key, 0.0, above(0.0)) : usual;
    };
    m.attention_softcap = read("attn_logit_softcapping", usual_attention);
    m.logit_softcap = read("final_logit_softcapping", usual_logit);
  };
}

void scale_scores_of_gemma(const JsonReader& config, Model& m) {
  const double scalar = config.optional<double>("query_pre_attn_scalar", 256.0, above(0.0));
  if (scalar != static_cast<double>(m.head_dim)) m.attention_scale = 1.0 / std::sqrt(scalar);
}

void norms_of_hyperclovax(const JsonReader& config, Model& m) {
  m.norms_per_layer = config.optional<bool>("use_post_norm", true) ? 4 : 2;
}

void norms_of_stablelm(const JsonReader&, Model& m) {
  m.norms_per_layer = m.parallel_residual ? 1 : 2;
  if (m.qk_norm) m.planning_only = "normalises queries and keys as a whole";
  if (m.parallel_residual) m.planning_only = "has one norm of parallel residuals";
}

void heads_of_falcon(const JsonReader& config, Model& m) {
  const bool recent = config.optional<bool>("new_decoder_architecture", false);
  const bool multi_query = config.optional<bool>("multi_query", true);
  pass_over(config, {"num_kv_heads"});  // in older files without effect
  m.kv_heads = recent        ? size_or(config, "num_kv_heads", m.heads, m.heads)
               : multi_query ? 1
                             : m.heads;
  m.parallel_residual = recent || config.optional<bool>("parallel_attn", true);
  const std::int64_t parallel_norms = size_or(config, "num_ln_in_parallel_attn", recent ? 2 : 1, 2);
  m.norms_per_layer = m.parallel_residual ? static_cast<int>(parallel_norms) : 2;
  if (config.optional<bool>("alibi", false)) {
    m.position = Position::kAlibi;
  } else {
    m.rope = read_rope(config, m.head_dim, {});
  }
}

void heads_of_bigcode(const JsonReader& config, Model& m) {
  const bool one = config.optional<bool>("multi_query", true);
  if (one) m.kv_heads = 1;
  if (!one) m.planning_only = "stores query, key and value of a head side by side";
}

void gates_of_laguna(const JsonReader& config, Model& m) {
  const bool named = present(config, "gating") && config.raw()["gating"].is_string();
  if (named) config.require_choice("gating", {"per-head", "per-channel"});
  m.attention_gate = named && config.require<std::string>("gating") == "per-channel";
  m.head_gate = !m.attention_gate && (named || config.optional<bool>("gating", true));
  if (!m.attention_gate && !m.head_gate) m.attention_gate = true;  // false: of every channel
}

void mpt_attention(const JsonReader& config, Model& m) {
  m.position = Position::kAlibi;
  m.fused_qkv = true;
  const auto attention = config.find_object("attn_config");
  if (!attention) return;
  if (attention->has("attn_type")) {
    const std::string type = attention->require_choice(
        "attn_type", {"multihead_attention", "multiquery_attention", "grouped_query_attention"});
    if (type == "multiquery_attention") m.kv_heads = 1;
    if (type == "grouped_query_attention") {
      m.kv_heads = size(*attention, "kv_n_heads", kHeads);
      if (m.heads % m.kv_heads != 0)
        attention->fail("kv_n_heads", fmt::format("a divisor of the {} n_heads", m.heads));
    }
  }
  if (!attention->optional<bool>("alibi", true)) {
    m.position = Position::kLearned;
    if (!config.optional<bool>("learned_pos_emb", true))
      config.fail("learned_pos_emb", "true, or alibi in attn_config");
  }
  m.fused_qkv = attention->optional<bool>("fused_qkv", true);
  m.attention_scale = attention->optional<double>("softmax_scale", 0.0, above(0.0));
  const double steepest = attention->optional<double>("alibi_bias_max", 8.0, above(0.0));
  if (steepest != 8.0 && m.position == Position::kAlibi)
    m.planning_only = "has slopes of ALiBi that do not end at 2^-8";
  const auto window = attention->optional<std::int64_t>("sliding_window_size", -1,
                                                        between<std::int64_t>(-1, kPositions));
  if (window > 0) m.sliding_window = window;
  for (const char* key :
       {"rope", "qk_ln", "qk_gn", "clip_qkv", "prefix_lm", "attn_uses_sequence_id"})
    refuse(*attention, key);
}

void mpt_mlp(const JsonReader& config, Model& m) {
  const double ratio = config.optional<double>("expansion_ratio", 4.0, above(0.0));
  const double width = std::floor(ratio * static_cast<double>(m.hidden));
  if (width < 1 || width > static_cast<double>(kFfn)) {
    config.fail("expansion_ratio", fmt::format("a ratio that makes an MLP of 1 to {}", kFfn));
  }
  m.ffn = static_cast<std::int64_t>(width);
  m.gated_mlp = false;
  m.activation = Activation::kGelu;
  const auto ffn = config.find_object("ffn_config");
  if (!ffn) return;
  m.ffn = size_or(*ffn, "ffn_hidden_size", m.ffn, kFfn);
  if (ffn->has("ffn_type"))
    m.gated_mlp = ffn->require_choice("ffn_type", {"mptmlp", "mptglu"}) == "mptglu";
  if (const auto act = ffn->find_object("ffn_act_fn"))
    m.activation = activation(*act, "name", "gelu");
}

void mpt_norms_and_biases(const JsonReader& config, Model& m) {
  m.norm = Normalization::kLayerNorm;
  if (config.has("norm_type")) {
    const std::string norm = config.require_choice(
        "norm_type", {"low_precision_layernorm", "layernorm", "low_precision_rmsnorm", "rmsnorm"});
    if (norm.ends_with("rmsnorm")) m.norm = Normalization::kRmsNorm;
  }
  const bool biased = !config.optional<bool>("no_bias", true);
  m.norm_bias = biased && m.norm == Normalization::kLayerNorm;
  m.qkv_bias = m.attention_out_bias = m.mlp_bias = biased;
}

void no_layer_inputs(const JsonReader& config, Model&) {
  constexpr std::string_view kWidth = "hidden_size_per_layer_input";
  if (!config.has(kWidth) || config.require<std::int64_t>(kWidth) != 0)
    config.fail(kWidth, "0, because embeddings for each layer are not modelled");
}

}  // namespace shardwright::hf
