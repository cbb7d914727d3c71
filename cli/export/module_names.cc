// SPDX-License-Identifier: Apache-2.0
#include "cli/export/module_names.h"

#include <fmt/core.h>

#include <array>
#include <string_view>
#include <utility>

#include "sim/core/base/error.h"

namespace shardwright::cli {
namespace {

constexpr ModuleNames like_llama(std::string_view package, std::string_view layer,
                                 std::string_view norm) {
  return {package, layer, norm, "model.layers", "model.embed_tokens", "", "model.norm", "lm_head"};
}

constexpr std::array<std::pair<std::string_view, ModuleNames>, 29> kFamilies = {{
    {"llama", like_llama("llama", "LlamaDecoderLayer", "LlamaRMSNorm")},
    {"mistral", like_llama("mistral", "MistralDecoderLayer", "MistralRMSNorm")},
    {"qwen2", like_llama("qwen2", "Qwen2DecoderLayer", "Qwen2RMSNorm")},
    {"qwen3", like_llama("qwen3", "Qwen3DecoderLayer", "Qwen3RMSNorm")},
    {"phi3", like_llama("phi3", "Phi3DecoderLayer", "Phi3RMSNorm")},
    {"gemma", like_llama("gemma", "GemmaDecoderLayer", "GemmaRMSNorm")},
    {"gemma2", like_llama("gemma2", "Gemma2DecoderLayer", "Gemma2RMSNorm")},
    {"cohere", like_llama("cohere", "CohereDecoderLayer", "CohereLayerNorm")},
    {"deepseek_v2", like_llama("deepseek_v2", "DeepseekV2DecoderLayer", "DeepseekV2RMSNorm")},
    {"deepseek_v3", like_llama("deepseek_v3", "DeepseekV3DecoderLayer", "DeepseekV3RMSNorm")},
    {"gpt_oss", like_llama("gpt_oss", "GptOssDecoderLayer", "GptOssRMSNorm")},
    {"kimi_k2", like_llama("deepseek_v3", "DeepseekV3DecoderLayer", "DeepseekV3RMSNorm")},
    {"llama4_text", like_llama("llama4", "Llama4TextDecoderLayer", "Llama4TextRMSNorm")},
    {"mixtral", like_llama("mixtral", "MixtralDecoderLayer", "MixtralRMSNorm")},
    {"qwen2_moe", like_llama("qwen2_moe", "Qwen2MoeDecoderLayer", "Qwen2MoeRMSNorm")},
    {"qwen3_moe", like_llama("qwen3_moe", "Qwen3MoeDecoderLayer", "Qwen3MoeRMSNorm")},
    {"falcon",
     {"falcon", "FalconDecoderLayer", "", "transformer.h", "transformer.word_embeddings", "",
      "transformer.ln_f", "lm_head"}},
    {"gemma3_text", like_llama("gemma3", "Gemma3DecoderLayer", "Gemma3RMSNorm")},
    {"glm", like_llama("glm", "GlmDecoderLayer", "GlmRMSNorm")},
    {"glm4", like_llama("glm4", "Glm4DecoderLayer", "Glm4RMSNorm")},
    {"granite", like_llama("granite", "GraniteDecoderLayer", "GraniteRMSNorm")},
    {"nemotron", like_llama("nemotron", "NemotronDecoderLayer", "NemotronLayerNorm1P")},
    {"olmo2", like_llama("olmo2", "Olmo2DecoderLayer", "Olmo2RMSNorm")},
    {"smollm3", like_llama("smollm3", "SmolLM3DecoderLayer", "SmolLM3RMSNorm")},
    {"stablelm", like_llama("stablelm", "StableLmDecoderLayer", "")},
    {"starcoder2", like_llama("starcoder2", "Starcoder2DecoderLayer", "")},
    {"gpt2",
     {"gpt2", "GPT2Block", "", "transformer.h", "transformer.wte", "transformer.wpe",
      "transformer.ln_f", "lm_head"}},
    {"gpt_neox",
     {"gpt_neox", "GPTNeoXLayer", "", "gpt_neox.layers", "gpt_neox.embed_in", "",
      "gpt_neox.final_layer_norm", "embed_out"}},
    {"mpt",
     {"mpt", "MptBlock", "", "transformer.blocks", "transformer.wte", "", "transformer.norm_f",
      "lm_head"}},
}};

}  // namespace

const ModuleNames& module_names(const Model& model) {
  for (const auto& [family, names] : kFamilies) {
    if (family == model.family) return names;
  }
  throw Error(fmt::format("the model's family is '{}', whose modules are not known to export.",
                          model.family));
}

}  // namespace shardwright::cli
