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

void refuse(const JsonReader& config, std::string_view key, double neutral, std::string_view why) {
  if (!config.has(key)) return;
  const nlohmann::json& value = config.raw()[std::string(key)];
  const bool is_neutral = value.is_boolean()  ? static_cast<double>(value.get<bool>()) == neutral
                          : value.is_number() ? value.get<double>() == neutral
                                              : false;
  if (is_neutral || (value.is_structured() && value.empty())) return;
  if (value.is_structured()) {
    config.fail(key, fmt::format("no such key, because {}", why));
  }
  config.fail(key, fmt::format("{} or no such key, because {}",
                               value.is_boolean() ? (neutral == 1 ? "true" : "false")
                                                  : fmt::format("{}", neutral),
                               why));
}

std::string_view key_of(const JsonReader& config, std::string_view either) {
  const std::size_t bar = either.find('|');
  const std::string_view first = either.substr(0, bar);
  return bar == either.npos || config.has(first) ? first : key_of(config, either.substr(bar + 1));
}

std::int64_t size(const JsonReader& config, std::string_view key, std::int64_t most) {
  return config.require<std::int64_t>(key_of(config, key), between<std::int64_t>(1, most));
}

std::int64_t size_or(const JsonReader& config, std::string_view key, std::int64_t fallback,
                     std::int64_t most) {
  return config.optional(key_of(config, key), fallback, between<std::int64_t>(1, most));
}

std::int64_t count_or(const JsonReader& config, std::string_view key, std::int64_t fallback,
                      std::int64_t most) {
  return config.optional(key_of(config, key), fallback, between<std::int64_t>(0, most));
}

bool present(const JsonReader& config, std::string_view key) {
  return config.raw().contains(key);
}

void pass_over(const JsonReader& config, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) static_cast<void>(config.has(key));
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

std::vector<std::string_view> words_of(std::string_view list) {
  std::vector<std::string_view> words;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(' '), list.size());
    if (end > 0) words.push_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return words;
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
      json += '"';
      json += literal;
      json += '"';
      at += literal.size() - 1;
    }
  }
  return json;
}

namespace {

/// Generation, bookkeeping, the tokenizer, heads for other tasks; how a router weighs its experts
/// and factors that cost nothing; and keys whose meaning another key has switched off.
constexpr std::string_view kWithoutEffect =
    "architectures attention_in_multiplier attention_out_multiplier attn_implementation "
    "attn_output_multiplier attn_scale attn_temperature_tuning auto_map aux_loss_alpha "
    "bad_words_ids begin_suppress_tokens bos_token_id cache_implementation chunk_size_feed_forward "
    "cls_token_id decoder_start_token_id do_sample dtype enable_moe_fp32_combine eod_token_id "
    "eos_token_id ep_size expert_selection_fn finetuning_task floor_scale full_attn_alpha_factor "
    "full_attn_beta_factor gradient_checkpointing hidden_act id2label init_config init_device "
    "initializer_cutoff_factor is_decoder kda_lower_bound kda_safe_gate key_multiplier label2id "
    "layer_rope_theta layer_types learned_pos_emb length_penalty linear_a_log_max linear_a_log_min "
    "linear_allow_neg_eigval linear_attn_alpha_factor linear_attn_beta_factor linear_dt_init_floor "
    "linear_dt_max linear_dt_min lm_head_multiplier mamba_hidden_act mamba_norm_before_gate "
    "mamba_ssm_cache_dtype mamba_ssm_dtype max_attn_value max_length max_new_tokens "
    "max_window_layers min_length mixer_rms_eps mla_use_nope mlp_alpha_factor mlp_beta_factor "
    "mlp_layer_types mlp_multipliers model_max_length model_type moe_norm_min moe_renormalize "
    "moe_routed_scaling_factor moe_router_activation_func moe_router_enable_expert_bias "
    "moe_shared_expert_overlap mtp_layers_block_type n_ctx n_group name_or_path "
    "no_repeat_ngram_size no_rope_layer_interval no_rope_layers norm_topk_prob num_beams "
    "num_logits_to_keep original_max_position_embeddings output_attentions output_hidden_states "
    "output_multiplier_scale output_router_logits output_scores pad_token_id "
    "position_embedding_type prefix prefix_dense_sliding_window_pattern pretraining_tp "
    "problem_type qk_head_dim qk_norm_type repetition_penalty rescale_prenorm_residual return_dict "
    "return_dict_in_generate rope_interleave rope_local_base_freq rope_theta rotary_dim "
    "route_scale routed_scaling_factor router_aux_loss_coef router_jitter_noise "
    "router_scaling_factor router_z_loss_coef scoring_func sep_token_id seq_aux "
    "shared_expert_combination_strategy sliding_window sliding_window_pattern ssm_in_multiplier "
    "ssm_multipliers ssm_out_multiplier suppress_tokens swiglu_alpha swiglu_limit "
    "task_specific_params temperature time_step_floor time_step_init_scheme time_step_limit "
    "time_step_max time_step_min time_step_scale tokenizer_class tokenizer_name top_k top_p "
    "topk_group topk_method torch_dtype torchscript transformers_version use_associative_scan "
    "use_cache use_expert_bias use_grouped_topk use_mamba_kernels use_mambapy use_routing_bias";

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
  const std::vector<std::string_view> without_effect = words_of(kWithoutEffect);
  std::vector<std::string> keys = config.keys();
  std::erase_if(keys, [&](const std::string& key) {
    return key.starts_with('_') || asked.contains(key) || is_dropout(key) ||
           for_another_task(key) || holds_nothing(config.raw()[key]) ||
           std::find(without_effect.begin(), without_effect.end(), key) != without_effect.end();
  });
  return keys;
}

namespace {

struct Part {
  std::string_view what, types;
};

constexpr std::array kParts = {
    Part{"activations with trained weights", "apertus"},
    Part{"a norm behind experts alone", "axk1"},
    Part{"an indexer of sparse attention",
         "axk2 deepseek_v32 dots3_note dots3_note_text glm_moe_dsa hy_v4"},
    Part{"norms inside attention and MLP", "bitnet"},
    Part{"biases on the head", "codegen gptj phi"},
    Part{"compressed attention and hyper-connections", "deepseek_ref deepseek_v4"},
    Part{"differential attention", "diffllama"},
    Part{"embeddings for each layer", "gemma3n gemma3n_text"},
    Part{"short convolutions", "inkling2_text inkling_text"},
    Part{"experts of attention", "jetmoe"},
    Part{"convolutional layers", "lfm3"},
    Part{"two attentions in a layer", "longcat_flash"},
    Part{"heads that differ between full and windowed attention",
         "mimo_v2_flash step3p7 step3p7_text"},
    Part{"latent attention in a dense model", "minicpm3 youtu"},
    Part{"block-sparse attention", "MiniMaxM3SparseForCausalLM minimax_m3 minimax_m3_vl_text"},
    Part{"weightless norms", "nanochat olmo"},
    Part{"blocks of different sizes", "nemotron-nas"},
    Part{"recurrent layers", "recurrent_gemma rwkv xlstm"},
    Part{"Mamba layers beside shared attention", "zamba"},
    Part{"blocks of attention that layers share", "zamba2"},
};

}  // namespace

std::string_view unmodelled_part(std::string_view type) {
  for (const Part& part : kParts) {
    const std::vector<std::string_view> types = words_of(part.types);
    if (std::find(types.begin(), types.end(), type) != types.end()) return part.what;
  }
  return {};
}

}  // namespace shardwright::hf
