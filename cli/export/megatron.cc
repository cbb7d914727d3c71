// SPDX-License-Identifier: Apache-2.0
// A plan for Megatron: arguments of Megatron-LM's pretrain_gpt.py as bash arrays, and a Python
// function that changes the ConfigContainer of a recipe of Megatron-Bridge. What options there are
// says megatron_options.h; this file writes them down.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "cli/export/megatron_options.h"
#include "cli/export/settings.h"
#include "sim/core/base/error.h"
#include "sim/program/low_precision.h"

namespace shardwright::cli {
namespace {

/// "PARALLELISM_ARGS" of "parallelism".
Bare array_name(std::string group) {
  for (char& c : group) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return bare(group + "_ARGS");
}

ShellSource bash_arrays(const MegatronOptions& options, std::vector<Bare>& names) {
  ShellSource text;
  std::string_view group;
  for (const MegatronOption& option : options) {
    if (option.argument.empty()) continue;
    if (option.group != group) {
      names.push_back(array_name(std::string(option.group)));
      text += ShellSource::format("{}{}=(\n", group.empty() ? "" : ")\n", names.back());
      group = option.group;
    }
    text += ShellSource::format("  {}{}{}\n", shell_word(option.argument),
                                option.value.text().empty() ? "" : " ", option.value);
  }
  return text.text().empty() ? text : text + ")\n";
}

/// Collectives must be issued before the products that they run beside.
bool one_connection(const sim::Job& inputs, const Plan& run) {
  const bool blackwell = inputs.profile.cluster.gpu.architecture == "blackwell";
  const bool divides = run.parallel.tp > 1 || run.parallel.cp > 1;
  return divides && !blackwell && run.strategy != Strategy::kMegatronFsdp &&
         !run.parallel.ep_overlap.value_or(false);
}

struct Recipe {
  std::string_view family;
  std::int64_t layers, hidden;
  std::string_view module, function;
};

// megatron/bridge/recipes/*/*.py of 0.3.
constexpr std::array<Recipe, 20> kRecipes = {{
    {"llama", 16, 2048, "llama.llama3", "llama32_1b_pretrain_config"},
    {"llama", 28, 3072, "llama.llama3", "llama32_3b_pretrain_config"},
    {"llama", 32, 4096, "llama.llama3", "llama31_8b_pretrain_config"},
    {"llama", 80, 8192, "llama.llama3", "llama31_70b_pretrain_config"},
    {"llama", 126, 16384, "llama.llama3", "llama31_405b_pretrain_config"},
    {"qwen2", 28, 3584, "qwen.qwen2", "qwen25_7b_pretrain_config"},
    {"qwen2", 48, 5120, "qwen.qwen2", "qwen25_14b_pretrain_config"},
    {"qwen2", 64, 5120, "qwen.qwen2", "qwen25_32b_pretrain_config"},
    {"qwen2", 80, 8192, "qwen.qwen2", "qwen25_72b_pretrain_config"},
    {"qwen3", 36, 2560, "qwen.qwen3", "qwen3_4b_pretrain_config"},
    {"qwen3", 36, 4096, "qwen.qwen3", "qwen3_8b_pretrain_config"},
    {"qwen3", 40, 5120, "qwen.qwen3", "qwen3_14b_pretrain_config"},
    {"qwen3", 64, 5120, "qwen.qwen3", "qwen3_32b_pretrain_config"},
    {"qwen3_moe", 48, 2048, "qwen.qwen3_moe", "qwen3_30b_a3b_pretrain_config"},
    {"qwen3_moe", 94, 4096, "qwen.qwen3_moe", "qwen3_235b_a22b_pretrain_config"},
    {"gpt_oss", 24, 2880, "gpt_oss.gpt_oss", "gpt_oss_20b_pretrain_config"},
    {"gpt_oss", 36, 2880, "gpt_oss.gpt_oss", "gpt_oss_120b_pretrain_config"},
    {"deepseek_v2", 60, 5120, "deepseek.deepseek_v2", "deepseek_v2_pretrain_config"},
    {"deepseek_v3", 61, 7168, "deepseek.deepseek_v3", "deepseek_v3_pretrain_config"},
    {"kimi_k2", 61, 7168, "kimi.kimi_k2", "kimi_k2_pretrain_config"},
}};

/// Of equal sizes the one with as many words: Llama 2 has Llama 3's layers.
const Recipe* recipe_of(const Model& model) {
  for (const Recipe& recipe : kRecipes) {
    const bool llama3 = recipe.family != "llama" || model.vocab == 128256;
    // Kimi-K2 is a deepseek_v3 with more experts.
    std::string_view family = model.family;
    if (family == "deepseek_v3" && model.experts.count == 384) family = "kimi_k2";
    if (recipe.family == family && recipe.layers == model.layers && recipe.hidden == model.hidden &&
        llama3) {
      return &recipe;
    }
  }
  return nullptr;
}

/// The registered precision recipe, as training/mixed_precision.py names them.
std::string_view precision_recipe(const Plan& plan) {
  const Numerics& n = plan.numerics;
  switch (n.precision) {
    case Precision::kFp16:
      return "fp16_mixed";
    case Precision::kNvfp4:
      return "bf16_with_nvfp4_mixed";
    case Precision::kBf16:
      return plan.param_dtype == DType::kFp32 ? "" : "bf16_mixed";
    case Precision::kFp8:
      break;
  }
  switch (sim::fp8_recipe_of(plan)) {
    case Fp8Recipe::kTensorwise:
      return "bf16_with_fp8_current_scaling_mixed";
    case Fp8Recipe::kBlock:
      return "bf16_with_fp8_subchannel_scaling_mixed";
    case Fp8Recipe::kMxfp8:
      return "bf16_with_mxfp8_mixed";
    default:
      return "bf16_with_fp8_delayed_scaling_mixed";
  }
}

PythonSource bridge_overrides(const MegatronOptions& options) {
  PythonSource text;
  for (const MegatronOption& option : options) {
    if (option.field.empty() || option.field.starts_with("comm_overlap.")) continue;
    text += PythonSource::format("    config.{} = {}\n", bare(option.field), option.python);
  }
  return text;
}

bool has_field(const MegatronOptions& options, std::string_view field) {
  for (const MegatronOption& option : options) {
    if (option.field == field) return true;
  }
  return false;
}

}  // namespace

TrainerSettings megatron_lm_settings(const sim::Job& inputs, const Plan& plan) {
  if (plan.numerics.lora > 0) {
    throw Error(
        fmt::format("lora is {}, which Megatron-LM does not have, expected --format "
                    "megatron-bridge",
                    plan.numerics.lora));
  }
  TrainerSettings settings;
  MegatronOptions options = megatron_plan_options(inputs, plan, settings);
  const MegatronOptions model = megatron_model_options(inputs, plan, settings);
  options.insert(options.begin(), model.begin(), model.end());
  std::vector<Bare> names;
  const ShellSource arrays = bash_arrays(options, names);
  ShellSource environment;
  if (one_connection(inputs, settings.as_run)) {
    environment += "export CUDA_DEVICE_MAX_CONNECTIONS=1\n";
  }
  if (plan.allocator == AllocatorKind::kExpandable) {
    environment += "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n";
  }
  ShellSource all;
  for (const Bare& name : names)
    all += ShellSource::format("{}\"${{{}[@]}}\"", all.text().empty() ? "" : " ", name);
  settings.body = environment + arrays + ShellSource::format("MEGATRON_ARGS=({})\n", all);
  const Ranks ranks = ranks_of(inputs, settings.as_run);
  settings.said("gpus",
                fmt::format("source the file and start with torchrun --nnodes={} "
                            "--nproc_per_node={} pretrain_gpt.py \"${{MEGATRON_ARGS[@]}}\" and "
                            "the arguments of data, tokenizer, learning rate and checkpoints",
                            ranks.nodes, ranks.per_node));
  return settings;
}

TrainerSettings megatron_bridge_settings(const sim::Job& inputs, const Plan& plan) {
  TrainerSettings settings;
  const MegatronOptions options = megatron_plan_options(inputs, plan, settings);
  const Recipe* recipe = recipe_of(inputs.model);
  const bool torch = has_field(options, "optimizer.exp_avg_dtype");
  PythonSource text;
  if (torch) text += "import torch\n";
  const bool lora = plan.numerics.lora > 0;
  if (plan.numerics.quantize != Quantize::kNone) {
    settings.lost("quantize",
                  fmt::format("{}; Megatron-Bridge keeps frozen weights in the model's type",
                              name_of(plan.numerics.quantize)));
    settings.as_run.numerics.quantize = Quantize::kNone;
  }
  if (lora) text += "from megatron.bridge.peft.lora import LoRA\n";
  if (recipe != nullptr) {
    text += PythonSource::format("from megatron.bridge.recipes.{} import {} as recipe\n",
                                 bare(recipe->module), bare(recipe->function));
  } else {
    settings.lost("model",
                  "Megatron-Bridge has no recipe of this model: pass plan() a function "
                  "that makes its ConfigContainer");
  }
  text += "from megatron.bridge.training.comm_overlap import CommOverlapConfig\n";
  const std::string_view precision = precision_recipe(plan);
  // A recipe overrides what the section of DDP says of reductions: all but fp16's are in fp32.
  const bool names_recipe = !precision.empty();
  const bool own_recipe = (plan.reduce_dtype == DType::kBf16) != (precision == "fp16_mixed");
  if (names_recipe && own_recipe)
    text += "from megatron.bridge.training.mixed_precision import get_mixed_precision_config\n";
  text += recipe != nullptr ? "\n\ndef plan(recipe=recipe):\n" : "\n\ndef plan(recipe):\n";
  text += "    config = recipe()\n" + bridge_overrides(options);
  if (!has_field(options, "model.sequence_parallel")) {
    text += "    config.model.sequence_parallel = False\n";
  }
  for (const auto& [field, rest] : std::initializer_list<std::pair<const char*, const char*>>{
           {"virtual_pipeline_model_parallel_size", "None"},
           {"pipeline_model_parallel_layout", "None"},
           {"context_parallel_size", "1"},
           {"recompute_granularity", "None"}}) {
    // A recipe may have set what the plan leaves alone.
    if (!has_field(options, std::string("model.") + field))
      text += PythonSource::format("    config.model.{} = {}\n", field, rest);
  }
  text += PythonSource::format("    config.model.seq_length = {}\n", plan.seq_len);
  text += PythonSource::format("    config.dataset.seq_length = {}\n", plan.seq_len);
  if (names_recipe && !own_recipe)
    text += PythonSource::format("    config.mixed_precision = {}\n", string_literal(precision));
  if (names_recipe && own_recipe) {
    text += PythonSource::format(
        "    config.mixed_precision = get_mixed_precision_config({})\n"
        "    config.mixed_precision.grad_reduce_in_fp32 = {}\n",
        string_literal(precision), plan.reduce_dtype == DType::kBf16 ? "False" : "True");
  }
  text +=
      PythonSource::format("    config.comm_overlap = CommOverlapConfig(tp_comm_overlap={})\n",
                           has_field(options, "comm_overlap.tp_comm_overlap") ? "True" : "False");
  if (lora) {
    text += PythonSource::format("    config.peft = LoRA(dim={})\n", plan.numerics.lora);
  }
  settings.body = text + "    return config\n";
  if (plan.numerics.fp8_params) {
    settings.said("fp8_params",
                  "the precision recipe decides it: set fp8_param_gather in a "
                  "MixedPrecisionConfig of your own to change it");
  }
  const Ranks ranks = ranks_of(inputs, settings.as_run);
  settings.said("gpus", fmt::format("save it as shardwright_plan.py and call "
                                    "megatron.bridge.training.pretrain.pretrain(plan(), "
                                    "forward_step) under torchrun --nnodes={} "
                                    "--nproc_per_node={}",
                                    ranks.nodes, ranks.per_node));
  return settings;
}

}  // namespace shardwright::cli
