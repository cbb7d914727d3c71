// SPDX-License-Identifier: Apache-2.0
#include "sim/core/hf/keys.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

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

/// Windowed layers of files without layer_types, by what the family's class does.
std::int64_t usual_windows(const JsonReader& config, const Model& m) {
  if (m.family == "qwen2" || m.family == "qwen3" || m.family == "qwen2_moe" ||
      m.family == "qwen3_moe") {
    return std::max<std::int64_t>(
        0, m.layers - config.optional<std::int64_t>("max_window_layers", 28));
  }
  // Every second layer sees all, or every sixth.
  if (m.family == "gemma2" || m.family == "vaultgemma" || m.family == "gpt_oss")
    return (m.layers + 1) / 2;
  if (m.family == "gemma3_text") {
    return m.layers -
           m.layers / size_or(config, "sliding_window_pattern", 6, model_limits::kLayers);
  }
  if (m.family == "mellum") return 0;
  // The first two see all, every fourth, and the last one.
  if (m.family == "flint") {
    return m.layers - ((m.layers + 2) / 4 + 1 + (m.layers % 4 == 2 ? 0 : 1));
  }
  constexpr std::array<std::string_view, 9> kPatterns = {
      "cohere2_moe", "exaone4", "exaone_moe",  "olmo3",         "cohere2",
      "kolibri1",    "cwm",     "granite_swa", "granitemoe_swa"};
  if (std::find(kPatterns.begin(), kPatterns.end(), m.family) != kPatterns.end()) {
    const std::int64_t usual = m.family == "kolibri1" ? 5 : 4;
    const std::int64_t every =
        size_or(config, "sliding_window_pattern", usual, model_limits::kLayers);
    // These begin with one that sees all, the others end with it.
    const bool first = m.family == "cwm" || m.family.ends_with("_swa");
    return m.layers - (first ? (m.layers + every - 1) / every : m.layers / every);
  }
  return m.layers;
}

}  // namespace

void require_neutral(const JsonReader& config, const NeutralKey& entry, std::string_view why) {
  if (!config.has(entry.key)) return;
  const nlohmann::json& value = config.raw()[std::string(entry.key)];
  const bool neutral = value.is_boolean()  ? static_cast<double>(value.get<bool>()) == entry.neutral
                       : value.is_number() ? value.get<double>() == entry.neutral
                                           : false;
  if (neutral || (value.is_structured() && value.empty())) return;
  if (value.is_structured()) {
    config.fail(entry.key, fmt::format("no such key, because {}", why));
  }
  config.fail(entry.key, fmt::format("{} or no such key, because {}",
                                     value.is_boolean() ? (entry.neutral == 1 ? "true" : "false")
                                                        : fmt::format("{}", entry.neutral),
                                     why));
}

void refuse(const JsonReader& config, std::string_view key, double neutral) {
  require_neutral(config, {key, neutral}, "this is not modelled");
}

std::int64_t size(const JsonReader& config, std::string_view key, std::int64_t most) {
  return config.require<std::int64_t>(key, between<std::int64_t>(1, most));
}

std::int64_t size_or(const JsonReader& config, std::string_view key, std::int64_t fallback,
                     std::int64_t most) {
  return config.optional<std::int64_t>(key, fallback, between<std::int64_t>(1, most));
}

bool present(const JsonReader& config, std::string_view key) {
  return config.raw().contains(key);
}

Activation activation(const JsonReader& config, std::string_view key, std::string_view fallback) {
  const std::string name = config.optional<std::string>(key, std::string(fallback));
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_new" || name == "gelu_fast" || name == "gelu_pytorch_tanh") {
    return Activation::kGeluTanh;
  }
  if (name == "relu") return Activation::kRelu;
  config.fail(key, "one of silu, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, relu");
}

double norm_eps(const JsonReader& config, std::string_view key, double fallback) {
  return config.optional<double>(key, fallback, above(0.0));
}

std::int64_t divided_head_dim(const JsonReader& config, const Model& m,
                              std::string_view heads_key) {
  if (m.hidden % m.heads != 0) {
    config.fail(heads_key, fmt::format("a divisor of the hidden size {}", m.hidden));
  }
  return m.hidden / m.heads;
}

void set_sliding_window(const JsonReader& config, Model& m) {
  const bool qwen = m.family.rfind("qwen", 0) == 0;
  const std::optional<std::int64_t> listed = listed_windows(config);
  const bool used = config.optional<bool>("use_sliding_window", !qwen);
  // A window that is not used may be 0.
  const auto window = config.find<std::int64_t>(
      "sliding_window", between<std::int64_t>(used ? 1 : 0, model_limits::kPositions));
  if (!used) return;
  const std::int64_t layers = std::min(m.layers, listed ? *listed : usual_windows(config, m));
  if (layers == 0) return;
  const bool gemma = m.family == "gemma2" || m.family == "gemma3_text" || m.family == "vaultgemma";
  const bool usual = gemma && !present(config, "sliding_window");
  m.sliding_window = usual ? 4096 : window.value_or(0);
  m.windowed_layers = m.sliding_window > 0 ? layers : 0;
}

namespace {

constexpr std::array<std::string_view, 3> kLiterals = {"-Infinity", "Infinity", "NaN"};

/// The literal that `text` begins with, or "".
std::string_view literal_at(std::string_view text) {
  for (const std::string_view literal : kLiterals) {
    if (text.starts_with(literal)) return literal;
  }
  return {};
}

}  // namespace

std::string without_python_literals(std::string_view text) {
  std::string json;
  json.reserve(text.size());
  bool quoted = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted && c == '\\' && at + 1 < text.size()) {
      json += text.substr(at++, 2);
      continue;
    }
    if (c == '"') quoted = !quoted;
    const std::string_view literal = quoted ? std::string_view() : literal_at(text.substr(at));
    if (literal.empty()) {
      json += c;
    } else {
      json += "null";
      at += literal.size() - 1;
    }
  }
  return json;
}

namespace {

/// Generation, bookkeeping, the tokenizer, heads for other tasks; how a router weighs its experts
/// and factors that cost nothing; and keys whose meaning another key has switched off.
constexpr std::array<std::string_view, 148> kWithoutEffect = {
    "architectures",
    "attention_in_multiplier",
    "attention_out_multiplier",
    "attn_implementation",
    "attn_output_multiplier",
    "attn_scale",
    "attn_temperature_tuning",
    "auto_map",
    "aux_loss_alpha",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "cls_token_id",
    "decoder_start_token_id",
    "do_sample",
    "dtype",
    "enable_moe_fp32_combine",
    "eod_token_id",
    "eos_token_id",
    "ep_size",
    "expert_selection_fn",
    "finetuning_task",
    "floor_scale",
    "full_attn_alpha_factor",
    "full_attn_beta_factor",
    "gradient_checkpointing",
    "hidden_act",
    "id2label",
    "init_config",
    "init_device",
    "initializer_cutoff_factor",
    "is_decoder",
    "kda_lower_bound",
    "kda_safe_gate",
    "key_multiplier",
    "label2id",
    "layer_rope_theta",
    "layer_types",
    "learned_pos_emb",
    "length_penalty",
    "linear_a_log_max",
    "linear_a_log_min",
    "linear_allow_neg_eigval",
    "linear_attn_alpha_factor",
    "linear_attn_beta_factor",
    "linear_dt_init_floor",
    "linear_dt_max",
    "linear_dt_min",
    "lm_head_multiplier",
    "mamba_hidden_act",
    "mamba_norm_before_gate",
    "mamba_ssm_cache_dtype",
    "mamba_ssm_dtype",
    "max_attn_value",
    "max_length",
    "max_new_tokens",
    "max_window_layers",
    "min_length",
    "mixer_rms_eps",
    "mla_use_nope",
    "mlp_alpha_factor",
    "mlp_beta_factor",
    "mlp_layer_types",
    "mlp_multipliers",
    "model_max_length",
    "model_type",
    "moe_norm_min",
    "moe_renormalize",
    "moe_routed_scaling_factor",
    "moe_router_activation_func",
    "moe_router_enable_expert_bias",
    "moe_shared_expert_overlap",
    "mtp_layers_block_type",
    "n_ctx",
    "n_group",
    "name_or_path",
    "no_repeat_ngram_size",
    "no_rope_layer_interval",
    "no_rope_layers",
    "norm_topk_prob",
    "num_beams",
    "num_logits_to_keep",
    "original_max_position_embeddings",
    "output_attentions",
    "output_hidden_states",
    "output_multiplier_scale",
    "output_router_logits",
    "output_scores",
    "pad_token_id",
    "position_embedding_type",
    "prefix",
    "prefix_dense_sliding_window_pattern",
    "pretraining_tp",
    "problem_type",
    "qk_head_dim",
    "qk_norm_type",
    "repetition_penalty",
    "rescale_prenorm_residual",
    "return_dict",
    "return_dict_in_generate",
    "rope_interleave",
    "rope_local_base_freq",
    "rope_theta",
    "rotary_dim",
    "route_scale",
    "routed_scaling_factor",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "router_scaling_factor",
    "router_z_loss_coef",
    "scoring_func",
    "sep_token_id",
    "seq_aux",
    "shared_expert_combination_strategy",
    "sliding_window",
    "sliding_window_pattern",
    "ssm_in_multiplier",
    "ssm_multipliers",
    "ssm_out_multiplier",
    "suppress_tokens",
    "swiglu_alpha",
    "swiglu_limit",
    "task_specific_params",
    "temperature",
    "time_step_floor",
    "time_step_init_scheme",
    "time_step_limit",
    "time_step_max",
    "time_step_min",
    "time_step_scale",
    "tokenizer_class",
    "tokenizer_name",
    "top_k",
    "top_p",
    "topk_group",
    "topk_method",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "use_associative_scan",
    "use_cache",
    "use_expert_bias",
    "use_grouped_topk",
    "use_mamba_kernels",
    "use_mambapy",
    "use_routing_bias",
};

bool for_another_task(std::string_view key) {
  return key.starts_with("summary_") || key.find("classifier") != key.npos;
}

bool is_dropout(std::string_view key) {
  return key.find("drop") != key.npos && !for_another_task(key);
}

bool holds_nothing(const nlohmann::json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0;
  return value.is_null() || value.empty();
}

/// Keys by the probability that they give.
void add_dropouts(const JsonReader& object, std::map<double, std::vector<std::string>>& keys) {
  for (const std::string& key : object.keys()) {
    if (!is_dropout(key) || key.starts_with('_')) continue;
    const nlohmann::json& value = object.raw()[key];
    if (value.is_number() && value.get<double>() > 0) keys[value.get<double>()].push_back(key);
  }
}

}  // namespace

std::string dropout_of(const JsonReader& config) {
  std::map<double, std::vector<std::string>> keys;
  add_dropouts(config, keys);
  if (config.has("attn_config")) add_dropouts(config.require_object("attn_config"), keys);
  std::vector<std::string> clauses;
  for (const auto& [probability, named] : keys) {
    clauses.push_back(fmt::format("{} {} {}", fmt::join(named, ", "),
                                  named.size() == 1 ? "is" : "are", probability));
  }
  return fmt::format("{}", fmt::join(clauses, "; "));
}

std::vector<std::string> ignored_keys(const JsonReader& config,
                                      const std::set<std::string, std::less<>>& asked) {
  std::vector<std::string> keys = config.keys();
  std::erase_if(keys, [&](const std::string& key) {
    return key.starts_with('_') || asked.contains(key) || is_dropout(key) ||
           for_another_task(key) || holds_nothing(config.raw()[key]) ||
           std::find(kWithoutEffect.begin(), kWithoutEffect.end(), key) != kWithoutEffect.end();
  });
  return keys;
}

namespace {

struct Part {
  std::string_view type, what;
};

// Recurrent or convolutional layers instead of attention.
constexpr std::string_view kSharedMamba = "Mamba layers beside shared attention",
                           kSharedBlocks = "blocks of attention that layers share",
                           kConvolutions = "convolutional layers", kShort = "short convolutions",
                           kRecurrent = "recurrent layers";
// Attention that differs.
constexpr std::string_view kIndexer = "an indexer of sparse attention",
                           kCompressed = "compressed attention and hyper-connections",
                           kBlockSparse = "block-sparse attention",
                           kHeadSizes = "heads that differ between full and windowed attention",
                           kLatent = "latent attention in a dense model";
// Layers that differ.
constexpr std::string_view kLayerInputs = "embeddings for each layer",
                           kSearched = "blocks of different sizes",
                           kTwoAttentions = "two attentions in a layer",
                           kExpertNorm = "a norm behind experts alone",
                           kTrainedActivation = "activations with trained weights",
                           kAttentionExperts = "experts of attention",
                           kWeightless = "weightless norms", kHeadBias = "biases on the head";

constexpr std::array kParts = {
    Part{"MiniMaxM3SparseForCausalLM", kBlockSparse},
    Part{"apertus", kTrainedActivation},
    Part{"axk1", kExpertNorm},
    Part{"axk2", kIndexer},
    Part{"bitnet", "norms inside attention and MLP"},
    Part{"codegen", kHeadBias},
    Part{"deepseek_ref", kCompressed},
    Part{"deepseek_v32", kIndexer},
    Part{"deepseek_v4", kCompressed},
    Part{"diffllama", "differential attention"},
    Part{"dots3_note", kIndexer},
    Part{"dots3_note_text", kIndexer},
    Part{"gemma3n", kLayerInputs},
    Part{"gemma3n_text", kLayerInputs},
    Part{"glm_moe_dsa", kIndexer},
    Part{"gptj", kHeadBias},
    Part{"hy_v4", kIndexer},
    Part{"inkling2_text", kShort},
    Part{"inkling_text", kShort},
    Part{"jetmoe", kAttentionExperts},
    Part{"lfm3", kConvolutions},
    Part{"longcat_flash", kTwoAttentions},
    Part{"mimo_v2_flash", kHeadSizes},
    Part{"minicpm3", kLatent},
    Part{"minimax_m3", kBlockSparse},
    Part{"minimax_m3_vl_text", kBlockSparse},
    Part{"nanochat", kWeightless},
    Part{"nemotron-nas", kSearched},
    Part{"olmo", kWeightless},
    Part{"phi", kHeadBias},
    Part{"recurrent_gemma", kRecurrent},
    Part{"rwkv", kRecurrent},
    Part{"step3p7", kHeadSizes},
    Part{"step3p7_text", kHeadSizes},
    Part{"xlstm", kRecurrent},
    Part{"youtu", kLatent},
    Part{"zamba", kSharedMamba},
    Part{"zamba2", kSharedBlocks},
};

}  // namespace

std::string_view unmodelled_part(std::string_view type) {
  const auto* const part = std::find_if(kParts.begin(), kParts.end(),
                                        [&](const Part& known) { return known.type == type; });
  return part == kParts.end() ? std::string_view() : part->what;
}

}  // namespace shardwright::hf
