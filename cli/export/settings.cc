// SPDX-License-Identifier: Apache-2.0
#include "cli/export/settings.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "cli/render/text/json_text.h"
#include "cli/text.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/features.h"

namespace shardwright::cli {

void TrainerSettings::lost(std::string knob, std::string sentence) {
  remarks.push_back({std::move(knob), std::move(sentence), true});
}

void TrainerSettings::said(std::string knob, std::string sentence) {
  remarks.push_back({std::move(knob), std::move(sentence), false});
}

const std::vector<Trainer>& trainers() {
  static const std::vector<Trainer> all = {
      {"torchtitan", "torchtitan", "0.3 config (Python)", torchtitan_settings},
      {"torchtitan-main", "torchtitan", "config of main after 0.3.0 (Python)",
       torchtitan_main_settings},
      {"torchtitan-0.2", "torchtitan", "0.2 job config (TOML; read by 0.2.2, not by 0.3)",
       torchtitan_toml_settings},
      {"accelerate", "Accelerate", "config (YAML)", accelerate_settings},
      {"yafsdp", "YaFSDP", "settings (Python; releases 1 and 2)", yafsdp_settings},
      {"deepspeed", "DeepSpeed", "config (JSON)", deepspeed_settings},
      {"axolotl", "axolotl", "config (YAML)", axolotl_settings},
      {"llama-factory", "LLaMA-Factory", "config (YAML)", llama_factory_settings},
      {"unsloth", "Unsloth", "script (Python)", unsloth_settings},
      {"torchtune", "torchtune", "0.6 config (YAML)", torchtune_settings},
      {"megatron-lm", "Megatron-LM", "arguments (bash)", megatron_lm_settings},
      {"megatron-bridge", "Megatron-Bridge", "0.3 recipe (Python)", megatron_bridge_settings}};
  return all;
}

const Trainer& trainer_named(const std::string& name) {
  std::vector<std::string> names;
  for (const Trainer& trainer : trainers()) {
    if (trainer.name == name) return trainer;
    names.emplace_back(trainer.name);
  }
  fail_word("--format", name, names);
}

void refuse_model_parallel(const Plan& plan, std::string_view trainer) {
  if (plan.offload == Offload::kOptimizer) return;  // told by the trainer's own file
  refuse_beyond(plan, {}, fmt::format("{} divides data alone", trainer),
                "--format torchtitan, megatron-lm or megatron-bridge");
}

Ranks ranks_of(const sim::Job& inputs, const Plan& plan) {
  const std::int64_t gpus_per_node = inputs.profile.cluster.gpus_per_node;
  Ranks ranks;
  ranks.shard = resolved_shard_group(plan, gpus_per_node);
  ranks.replicate = plan.gpus / ranks.shard;
  ranks.per_node = std::min(plan.gpus, gpus_per_node);
  ranks.nodes = (plan.gpus + ranks.per_node - 1) / ranks.per_node;
  return ranks;
}

Strategy nearest_fsdp2(Strategy strategy) {
  return info_of(strategy).reshards ? Strategy::kFsdp2 : Strategy::kFsdp2NoReshard;
}

std::int64_t checkpointed_layers(const Plan& plan) {
  return plan.recompute == Recompute::kNone ? 0 : plan.ckpt_layers;
}

void recompute_all_layers(Plan& run, Recompute how, std::int64_t layers) {
  run.recompute = how;
  run.pieces = 0;
  run.ckpt_layers = layers;
  run.ckpt_stride = 1;
}

std::string of_layers(std::int64_t count, std::int64_t layers) {
  return fmt::format("{} of {} layers", count, layers);
}

void remark_stack(const Plan& plan, std::string_view trainer, std::string stack,
                  TrainerSettings& settings) {
  if (plan.stack != stack) {
    settings.lost("stack",
                  fmt::format("the plan was made for the framework {}; {} runs other kernels "
                              "and allocates otherwise (framework {})",
                              plan.stack, trainer, stack));
  }
  settings.as_run.stack = std::move(stack);
  if (plan.loss_chunks > 1) {
    settings.lost("loss_chunks",
                  fmt::format("the plan computes the loss in {} pieces; {} is not told so, and all "
                              "logits exist at once",
                              plan.loss_chunks, trainer));
    settings.as_run.loss_chunks = 0;
  }
  if (plan.allocator != AllocatorKind::kStack) {
    settings.said(
        "allocator",
        fmt::format("no file of {} holds it: run with PYTORCH_CUDA_ALLOC_CONF="
                    "expandable_segments:{}",
                    trainer, plan.allocator == AllocatorKind::kExpandable ? "True" : "False"));
  }
}

void remark_gather_window(const Plan& plan, std::string_view trainer, std::string_view how,
                          TrainerSettings& settings) {
  const Plan usual;
  const std::string value = fmt::format("{} buffers and {} gathered ahead", plan.buffers,
                                        std::min(plan.prefetch, plan.buffers - 1));
  if (plan.gather_window() == usual.gather_window()) {
    settings.said("prefetch", fmt::format("{} is what {} does by itself: {}", value, trainer, how));
  } else {
    settings.lost("prefetch", fmt::format("{} cannot be told to {}: {}", value, trainer, how));
  }
  settings.as_run.buffers = usual.buffers;
  settings.as_run.prefetch = usual.prefetch;
}

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

namespace {

constexpr int kCommentColumns = 96;

/// The head's paragraphs, free of control characters: names of models and files are the user's.
std::vector<std::string> paragraphs(const Trainer& trainer, const TrainerSettings& settings,
                                    const std::vector<std::string>& origin) {
  std::vector<std::string> all;
  for (const std::string& sentence : origin) all.push_back(printable(sentence, true));
  for (const bool lost : {true, false}) {
    const auto of_kind = [lost](const Remark& r) { return r.lost == lost; };
    if (std::none_of(settings.remarks.begin(), settings.remarks.end(), of_kind)) continue;
    all.push_back(lost ? fmt::format("Not expressed; {} does otherwise:", trainer.title)
                       : "Said elsewhere or by itself:");
    for (const Remark& remark : settings.remarks) {
      if (of_kind(remark)) all.push_back("- " + printable(remark_text(remark), true));
    }
  }
  return all;
}

}  // namespace

std::string remark_text(const Remark& remark) {
  return fmt::format("{}: {}.", remark.knob, remark.sentence);
}

AnySource trainer_file(const Trainer& trainer, const TrainerSettings& settings,
                       const std::vector<std::string>& origin) {
  const std::vector<std::string> head = paragraphs(trainer, settings, origin);
  if (settings.body.language() == Script::kJson) {
    nlohmann::ordered_json document{{"_comment", head}};
    document.update(parse_ordered_json(settings.body.text()));
    return json_source(json_text(document) + "\n");
  }
  std::vector<std::string> lines;
  for (const std::string& paragraph : head) {
    const bool item = paragraph.starts_with("- ");
    bool first = true;
    for (const std::string& line : wrap(item ? paragraph.substr(2) : paragraph, kCommentColumns)) {
      lines.push_back((!item ? "" : first ? "- " : "  ") + line);
      first = false;
    }
  }
  return settings.body.commented(lines);
}

}  // namespace shardwright::cli
