// SPDX-License-Identifier: Apache-2.0
#include "sim/core/hf/ignored.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

namespace shardwright::hf {
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

}  // namespace shardwright::hf
