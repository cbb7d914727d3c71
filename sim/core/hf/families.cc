// SPDX-License-Identifier: Apache-2.0
#include "sim/core/hf/families.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/base/words.h"
#include "sim/core/hf/keys.h"
#include "sim/core/hf/rope.h"

namespace shardwright {
namespace {

using hf::NeutralKey;

constexpr std::array kExpertKeys = {NeutralKey{"num_local_experts", 0},
                                    NeutralKey{"num_experts", 0}, NeutralKey{"n_routed_experts", 0},
                                    NeutralKey{"moe_num_experts", 0},
                                    NeutralKey{"num_experts_per_tok", 0}};

constexpr std::array kUnmodelledKeys = {
    NeutralKey{"is_encoder_decoder", 0},
    NeutralKey{"add_cross_attention", 0},
    NeutralKey{"is_causal", 1},
    NeutralKey{"use_bidirectional_attention", 0},
    NeutralKey{"qk_layernorm", 0},
    NeutralKey{"use_qk_norm", 0},
    NeutralKey{"qk_norm", 0},
    NeutralKey{"clip_qkv", 0},
    NeutralKey{"alibi", 0},
    NeutralKey{"attention_chunk_size", 0},
    NeutralKey{"q_lora_rank", 0},
    NeutralKey{"kv_lora_rank", 0},
    NeutralKey{"num_kv_shared_layers", 0},
    NeutralKey{"num_nextn_predict_layers", 0},
    NeutralKey{"hidden_size_per_layer_input", 0},
    NeutralKey{"attention_multiplier", 0},
    NeutralKey{"residual_multiplier", 1},
    NeutralKey{"embedding_multiplier", 1},
    NeutralKey{"logits_scaling", 1},
    NeutralKey{"logit_scale", 0},
    NeutralKey{"attn_logit_softcapping", 0},
    NeutralKey{"final_logit_softcapping", 0},
    NeutralKey{"query_pre_attn_scalar", 0},
};

struct Family {
  std::string_view type;          // model_type
  std::string_view architecture;  // the class with a language-model head
  Model (*read)(const JsonReader&);
  /// Of the keys that other families must not have, those that this one reads or that cost nothing.
  std::array<std::string_view, 5> knows = {};
  bool has_experts = false;
  std::string_view saved_as = {};  // the class that Transformers names where it is another
};

constexpr std::array<std::string_view, 5> kGemmaKeys = {
    "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"};

constexpr std::array<std::string_view, 5> kGemma4Keys = {"final_logit_softcapping",
                                                         "use_bidirectional_attention"};

constexpr std::array<std::string_view, 5> kDeepseekKeys = {"q_lora_rank", "kv_lora_rank",
                                                           "num_nextn_predict_layers"};

constexpr std::array<std::string_view, 5> kMtpKeys = {"num_nextn_predict_layers"};

constexpr std::array<std::string_view, 5> kGraniteKeys = {
    "attention_multiplier", "residual_multiplier", "embedding_multiplier", "logits_scaling"};

constexpr std::array kFamilies = {
    Family{"afmoe", "AfmoeForCausalLM", hf::read_afmoe, {}, true},
    Family{"arcee", "ArceeForCausalLM", hf::read_arcee},
    Family{"bailing_hybrid", "BailingHybridForCausalLM", hf::read_bailing_hybrid, kDeepseekKeys,
           true},
    Family{"bailing_moe_linear", "BailingMoeLinearV2ForCausalLM", hf::read_bailing_moe_linear,
           kMtpKeys, true},
    Family{"bamba", "BambaForCausalLM", hf::read_bamba},
    Family{"cohere", "CohereForCausalLM", hf::read_cohere, {"logit_scale", "use_qk_norm"}},
    Family{"cohere2", "Cohere2ForCausalLM", hf::read_cohere2, {"logit_scale"}},
    Family{"cohere2_moe", "Cohere2MoeForCausalLM", hf::read_cohere2_moe, {"logit_scale"}, true},
    Family{"cwm", "CwmForCausalLM", hf::read_cwm},
    Family{"deepseek_v2", "DeepseekV2ForCausalLM", hf::read_deepseek_v2, kDeepseekKeys, true},
    Family{"deepseek_v3", "DeepseekV3ForCausalLM", hf::read_deepseek_v3, kDeepseekKeys, true},
    Family{"dots1", "Dots1ForCausalLM", hf::read_dots1, {}, true},
    Family{"ernie4_5", "Ernie4_5ForCausalLM", hf::read_ernie4_5},
    Family{"ernie4_5_moe", "Ernie4_5_MoeForCausalLM", hf::read_ernie4_5_moe, {}, true},
    Family{"exaone4", "Exaone4ForCausalLM", hf::read_exaone4},
    Family{"exaone_moe", "ExaoneMoeForCausalLM", hf::read_exaone_moe, kMtpKeys, true},
    Family{"falcon", "FalconForCausalLM", hf::read_falcon, {"alibi"}},
    Family{"falcon_h1", "FalconH1ForCausalLM", hf::read_falcon_h1, {"embedding_multiplier"}},
    Family{"falcon_mamba", "FalconMambaForCausalLM", hf::read_falcon_mamba},
    Family{"flex_olmo", "FlexOlmoForCausalLM", hf::read_flex_olmo, {}, true},
    Family{"flint", "FlintForCausalLM", hf::read_flint, {}, true},
    Family{"gemma", "GemmaForCausalLM", hf::read_gemma},
    Family{"gemma2", "Gemma2ForCausalLM", hf::read_gemma2, kGemmaKeys},
    Family{"gemma3_text", "Gemma3ForCausalLM", hf::read_gemma3, kGemmaKeys},
    Family{"gemma4_text", "Gemma4ForCausalLM", hf::read_gemma4_text, kGemma4Keys, true},
    Family{"gemma4_unified_text", "Gemma4UnifiedForCausalLM", hf::read_gemma4_text, kGemma4Keys,
           true},
    Family{"glm", "GlmForCausalLM", hf::read_glm},
    Family{"glm4", "Glm4ForCausalLM", hf::read_glm4},
    Family{"glm4_moe",
           "Glm4MoeForCausalLM",
           hf::read_glm4_moe,
           {"use_qk_norm", "num_nextn_predict_layers"},
           true},
    Family{"glm4_moe_lite", "Glm4MoeLiteForCausalLM", hf::read_glm4_moe_lite, kDeepseekKeys, true},
    Family{"gpt2", "GPT2LMHeadModel", hf::read_gpt2},
    Family{"gpt_bigcode", "GPTBigCodeForCausalLM", hf::read_gpt_bigcode},
    Family{"gpt_neox", "GPTNeoXForCausalLM", hf::read_gpt_neox},
    Family{"gpt_oss", "GptOssForCausalLM", hf::read_gpt_oss, {}, true},
    Family{"granite", "GraniteForCausalLM", hf::read_granite, kGraniteKeys},
    Family{"granite_swa", "GraniteSWAForCausalLM", hf::read_granite_swa, kGraniteKeys},
    Family{"granitemoe", "GraniteMoeForCausalLM", hf::read_granitemoe, kGraniteKeys, true},
    Family{"granitemoe_swa", "GraniteMoeSWAForCausalLM", hf::read_granitemoe_swa, kGraniteKeys,
           true},
    // Its experts may be none.
    Family{"granitemoehybrid", "GraniteMoeHybridForCausalLM", hf::read_granite4, kGraniteKeys,
           true},
    Family{"granitemoeshared", "GraniteMoeSharedForCausalLM", hf::read_granitemoeshared,
           kGraniteKeys, true},
    Family{"grok-1", "Grok1ModelForCausalLM", hf::read_grok1, {"attn_logit_softcapping"}, true},
    Family{"helium", "HeliumForCausalLM", hf::read_helium},
    Family{"hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", hf::read_hunyuan_v1_dense},
    Family{"hunyuan_v1_moe",
           "HunYuanMoEV1ForCausalLM",
           hf::read_hunyuan_v1_moe,
           {"use_qk_norm"},
           true},
    Family{"hy_v3", "HYV3ForCausalLM", hf::read_hy_v3, kMtpKeys, true},
    Family{"hyperclovax", "HyperCLOVAXForCausalLM", hf::read_hyperclovax, kGraniteKeys},
    Family{"internlm3", "InternLM3ForCausalLM", hf::read_internlm3, {}, false, "LlamaForCausalLM"},
    Family{"iquestcoder",
           "IQuestCoderForCausalLM",
           hf::read_iquestcoder,
           {},
           false,
           "LlamaForCausalLM"},
    Family{"jais2", "Jais2ForCausalLM", hf::read_jais2},
    Family{"jamba", "JambaForCausalLM", hf::read_jamba, {}, true},
    Family{"kimi_k2", "DeepseekV3ForCausalLM", hf::read_kimi_k2, kDeepseekKeys, true},
    Family{"kimi_linear", "KimiLinearForCausalLM", hf::read_kimi_linear, kDeepseekKeys, true},
    Family{"kolibri1", "Kolibri1ForCausalLM", hf::read_kolibri1, {}, true},
    Family{"laguna", "LagunaForCausalLM", hf::read_laguna, {}, true},
    Family{"lfm2", "Lfm2ForCausalLM", hf::read_lfm2},
    Family{"lfm2_moe", "Lfm2MoeForCausalLM", hf::read_lfm2_moe, {}, true},
    Family{"llama", "LlamaForCausalLM", hf::read_llama},
    Family{"llama4_text",
           "Llama4ForCausalLM",
           hf::read_llama4,
           {"use_qk_norm", "attention_chunk_size"},
           true},
    Family{"mamba", "MambaForCausalLM", hf::read_mamba},
    Family{"mamba2", "Mamba2ForCausalLM", hf::read_mamba2},
    Family{"mellum", "MellumForCausalLM", hf::read_mellum, kMtpKeys, true},
    Family{"mimo", "MiMoForCausalLM", hf::read_mimo, kMtpKeys},
    Family{"minimax", "MiniMaxForCausalLM", hf::read_minimax, {}, true},
    Family{"minimax_m2", "MiniMaxM2ForCausalLM", hf::read_minimax_m2, {"use_qk_norm"}, true},
    Family{"minimax_text_01", "MiniMaxText01ForCausalLM", hf::read_minimax_text_01, {}, true},
    Family{"ministral", "MinistralForCausalLM", hf::read_ministral},
    Family{"ministral3", "Ministral3ForCausalLM", hf::read_ministral3},
    Family{"mistral", "MistralForCausalLM", hf::read_mistral},
    Family{"mistral4", "Mistral4ForCausalLM", hf::read_mistral4, kDeepseekKeys, true},
    Family{"mixtral", "MixtralForCausalLM", hf::read_mixtral, {}, true},
    Family{"mpt", "MptForCausalLM", hf::read_mpt},
    Family{"nemotron", "NemotronForCausalLM", hf::read_nemotron},
    // Its experts may be none.
    Family{"nemotron_h", "NemotronHForCausalLM", hf::read_nemotron_h, kMtpKeys, true},
    Family{"olmo2", "Olmo2ForCausalLM", hf::read_olmo2},
    Family{"olmo3", "Olmo3ForCausalLM", hf::read_olmo3},
    Family{"olmo_hybrid", "OlmoHybridForCausalLM", hf::read_olmo_hybrid},
    Family{"olmoe", "OlmoeForCausalLM", hf::read_olmoe, {}, true},
    Family{"phi3", "Phi3ForCausalLM", hf::read_phi3},
    Family{"qwen2", "Qwen2ForCausalLM", hf::read_qwen2},
    Family{"qwen2_5_vl_text", "Qwen2_5_VLForConditionalGeneration", hf::read_qwen2_vl_text},
    Family{"qwen2_moe", "Qwen2MoeForCausalLM", hf::read_qwen2_moe, {}, true},
    Family{"qwen3", "Qwen3ForCausalLM", hf::read_qwen3},
    Family{"qwen3_5_moe_text",
           "Qwen3_5MoeForCausalLM",
           hf::read_qwen3_5_moe_text,
           {},
           true,
           "Qwen3_5MoeForConditionalGeneration"},
    Family{"qwen3_5_text",
           "Qwen3_5ForCausalLM",
           hf::read_qwen3_5_text,
           {},
           false,
           "Qwen3_5ForConditionalGeneration"},
    // All of them normalise queries and keys.
    Family{"qwen3_moe", "Qwen3MoeForCausalLM", hf::read_qwen3_moe, {"use_qk_norm"}, true},
    Family{"qwen3_next", "Qwen3NextForCausalLM", hf::read_qwen3_next, {}, true},
    Family{"qwen3_vl_moe_text",
           "Qwen3VLMoeForConditionalGeneration",
           hf::read_qwen3_vl_moe_text,
           {},
           true},
    Family{"qwen3_vl_text", "Qwen3VLForConditionalGeneration", hf::read_qwen3_vl_text},
    Family{"seed_oss", "SeedOssForCausalLM", hf::read_seed_oss},
    Family{"smollm3", "SmolLM3ForCausalLM", hf::read_smollm3},
    Family{"solar_open", "SolarOpenForCausalLM", hf::read_solar_open, kMtpKeys, true},
    Family{"stablelm", "StableLmForCausalLM", hf::read_stablelm, {"qk_layernorm"}},
    Family{"starcoder2", "Starcoder2ForCausalLM", hf::read_starcoder2},
    Family{"vaultgemma", "VaultGemmaForCausalLM", hf::read_vaultgemma, kGemmaKeys},
};

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

/// "one of 70 known families such as a, b and c", those whose names are most like `name`.
std::string known_ones(std::string_view name, const std::vector<std::string>& types) {
  return fmt::format("one of {} known families such as {}", types.size(),
                     fmt::join(nearest_few(name, types, 3), ", "));
}

/// By model_type, or by architectures in files that lack it; the two must agree, because another
/// head (a classifier, a reward) is another model.
const Family& family_of(const JsonReader& config) {
  const auto type = config.find<std::string>("model_type");
  const auto architectures = config.find_array("architectures");
  std::vector<std::string> types;
  for (const Family& family : kFamilies) {
    types.emplace_back(family.type);
    const std::string given =
        architectures && !architectures->empty() ? architectures->front().value<std::string>() : "";
    const bool named = given.empty() || equal_ignoring_case(given, family.architecture);
    if (type && *type == family.type) {
      if (!named && given != family.saved_as) architectures->front().fail(family.architecture);
      return family;
    }
    if (!type && architectures && !architectures->empty() && named) return family;
  }
  const auto without = [](std::string_view part) {
    return fmt::format("a model without {}, because that is not modelled", part);
  };
  if (!type && architectures && !architectures->empty()) {
    const JsonReader& first = architectures->front();
    const std::string name = first.value<std::string>();
    const std::string_view part = hf::unmodelled_part(name);
    first.fail(part.empty() ? "the language model of " + known_ones(name, types) : without(part));
  }
  const std::string_view part = type ? hf::unmodelled_part(*type) : std::string_view();
  if (!part.empty()) config.fail("model_type", without(part));
  config.fail("model_type", known_ones(type.value_or("llama"), types));
}

}  // namespace

namespace {

/// Weights stored in 8 or 4 bits, as the files of DeepSeek-V3 and gpt-oss are, are trained in what
/// the plan says; those of others are read the same way by trainers of adapters.
void check_storage(const JsonReader& config) {
  const auto stored = config.find_object("quantization_config");
  if (!stored) return;
  if (!stored->has("quant_method") && stored->has("quant_algo")) {  // as ModelOpt writes it
    stored->require_choice("quant_algo", {"FP8", "NVFP4", "MXFP8", "MIXED_PRECISION"});
    return;
  }
  stored->require_choice("quant_method", {"fp8", "fbgemm_fp8", "mxfp4", "modelopt",
                                          "compressed-tensors", "bitsandbytes"});
}

constexpr std::array<const char*, 3> kTextParts = {"text_config", "llm_config", "language_config"};

/// The language model in a config that wraps it beside towers for pictures and sound: its
/// text_config (InternVL: llm_config, Janus: language_config) where the wrapper itself is of no
/// known family.
JsonReader text_part(const JsonReader& config) {
  const auto type = config.find<std::string>("model_type");
  const auto known = [](std::string_view name) {
    return std::any_of(kFamilies.begin(), kFamilies.end(),
                       [&](const Family& family) { return family.type == name; });
  };
  if (type && known(*type)) return config;
  for (const char* key : kTextParts) {
    if (config.has(key)) return config.require_object(key);
  }
  return config;
}

bool wraps_text(const JsonReader& config) {
  return std::any_of(kTextParts.begin(), kTextParts.end(),
                     [&](const char* key) { return config.has(key); });
}

}  // namespace

Model model_from_config(const JsonReader& whole) {
  const JsonReader file = text_part(whole);
  const bool wrapped = wraps_text(whole) && !wraps_text(file);
  std::set<std::string, std::less<>> asked;
  const JsonReader config = file.noting(asked);
  const Family& family = family_of(config);
  for (const NeutralKey& entry : kExpertKeys) {
    if (family.has_experts) break;
    hf::require_neutral(config, entry,
                        fmt::format("{} models with experts are not modelled", family.type));
  }
  check_storage(config);
  if (wrapped) check_storage(whole);
  for (const NeutralKey& entry : kUnmodelledKeys) {
    if (std::find(family.knows.begin(), family.knows.end(), entry.key) != family.knows.end()) {
      continue;
    }
    hf::require_neutral(config, entry, "this is not modelled");
  }
  Model model = family.read(config);
  if (!model.is_moe() &&
      (model.rope.scaling == RopeScaling::kYarn || model.rope.scaling == RopeScaling::kLongrope)) {
    model.planning_only = "stretches RoPE with yarn or longrope";
  }
  if (model.planning_only.empty() && stretches_dynamically(config))
    model.planning_only = "stretches RoPE with the length of sequences";
  if (!model.is_moe() && model.rope.scaling == RopeScaling::kLlama3 &&
      model.rope.high_freq_factor == model.rope.low_freq_factor) {
    model.planning_only = "stretches some frequencies of RoPE without a transition";
  }
  model.initial_deviation =
      config.optional<double>("initializer_range", model.initial_deviation, above(0.0));
  model.dropout = hf::dropout_of(file);
  const bool stored = file.has("quantization_config") || whole.has("quantization_config");
  if (stored && model.planning_only.empty()) model.planning_only = "is stored in fewer bits";
  asked.insert(family.knows.begin(), family.knows.end());
  model.ignored_keys = hf::ignored_keys(file, asked);
  if (wrapped) {
    if (model.planning_only.empty())
      model.planning_only = "is the text part of a model for pictures";
    for (const char* tower : {"audio_config", "vision_config"}) {
      if (whole.has(tower)) model.ignored_keys.insert(model.ignored_keys.begin(), tower);
    }
    // Wrappers may tie the head where the text alone says nothing.
    if (whole.has("tie_word_embeddings") && !file.has("tie_word_embeddings"))
      model.tied_head = whole.require<bool>("tie_word_embeddings");
  }
  return model;
}

}  // namespace shardwright
