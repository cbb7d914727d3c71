// SPDX-License-Identifier: Apache-2.0
// torchtune's YAML for its recipes lora_finetune_distributed and full_finetune_distributed (0.6),
// or those of a single device. Model builders from torchtune/models.
#include <fmt/core.h>

#include <array>
#include <string>
#include <utility>

#include "cli/export/settings.h"
#include "cli/export/trainer_yaml.h"
#include "sim/core/base/error.h"

namespace shardwright::cli {
namespace {

constexpr std::int64_t kTuneLossChunks = 8;  // of its chunked losses

struct TuneBuilder {
  std::string_view model, package, name;
  std::string_view tokenizer;  // "llama3.llama3_tokenizer"
};
constexpr std::array kTuneBuilders = {
    TuneBuilder{"llama-2-7b", "llama2", "llama2_7b", "llama2.llama2_tokenizer"},
    TuneBuilder{"llama-2-13b", "llama2", "llama2_13b", "llama2.llama2_tokenizer"},
    TuneBuilder{"llama-2-70b", "llama2", "llama2_70b", "llama2.llama2_tokenizer"},
    TuneBuilder{"llama-3-8b", "llama3", "llama3_8b", "llama3.llama3_tokenizer"},
    TuneBuilder{"llama-3-70b", "llama3", "llama3_70b", "llama3.llama3_tokenizer"},
    TuneBuilder{"llama-3.1-8b", "llama3_1", "llama3_1_8b", "llama3.llama3_tokenizer"},
    TuneBuilder{"llama-3.1-70b", "llama3_1", "llama3_1_70b", "llama3.llama3_tokenizer"},
    TuneBuilder{"llama-3.1-405b", "llama3_1", "llama3_1_405b", "llama3.llama3_tokenizer"},
    TuneBuilder{"llama-3.2-1b", "llama3_2", "llama3_2_1b", "llama3.llama3_tokenizer"},
    TuneBuilder{"llama-3.2-3b", "llama3_2", "llama3_2_3b", "llama3.llama3_tokenizer"},
    TuneBuilder{"mistral-7b", "mistral", "mistral_7b", "mistral.mistral_tokenizer"},
    TuneBuilder{"gemma-2b", "gemma", "gemma_2b", "gemma.gemma_tokenizer"},
    TuneBuilder{"gemma-7b", "gemma", "gemma_7b", "gemma.gemma_tokenizer"},
    TuneBuilder{"gemma-2-2b", "gemma2", "gemma2_2b", "gemma.gemma_tokenizer"},
    TuneBuilder{"gemma-2-9b", "gemma2", "gemma2_9b", "gemma.gemma_tokenizer"},
    TuneBuilder{"gemma-2-27b", "gemma2", "gemma2_27b", "gemma.gemma_tokenizer"},
    TuneBuilder{"phi-3-mini", "phi3", "phi3_mini", "phi3.phi3_mini_tokenizer"},
    TuneBuilder{"qwen2.5-0.5b", "qwen2_5", "qwen2_5_0_5b", "qwen2_5.qwen2_5_tokenizer"},
    TuneBuilder{"qwen2.5-3b", "qwen2_5", "qwen2_5_3b", "qwen2_5.qwen2_5_tokenizer"},
    TuneBuilder{"qwen2.5-32b", "qwen2_5", "qwen2_5_32b_instruct", "qwen2_5.qwen2_5_tokenizer"},
    TuneBuilder{"qwen2.5-72b", "qwen2_5", "qwen2_5_72b_instruct", "qwen2_5.qwen2_5_tokenizer"}};

const TuneBuilder& builder_of(const std::string& model) {
  for (const TuneBuilder& builder : kTuneBuilders) {
    if (builder.model == model) return builder;
  }
  throw Error(
      fmt::format("--format torchtune has no builder for {}, expected a model of llama-2 to "
                  "llama-3.2, mistral-7b, gemma, phi-3-mini or qwen2.5, or --format axolotl",
                  model));
}

YamlSource tune_model(const TuneBuilder& builder, const Numerics& numerics) {
  const bool four = numerics.quantize == Quantize::kNf4;
  YamlSource text =
      YamlSource::format("model:\n  _component_: torchtune.models.{}.{}{}\n", bare(builder.package),
                         four                ? "qlora_"
                         : numerics.lora > 0 ? "lora_"
                                             : "",
                         bare(builder.name));
  if (numerics.lora == 0) return text;
  return text + YamlSource::format(
                    "  lora_attn_modules: [q_proj, k_proj, v_proj, output_proj]\n"
                    "  apply_lora_to_mlp: true\n"
                    "  apply_lora_to_output: false\n"
                    "  lora_rank: {}\n"
                    "  lora_alpha: {}\n",
                    numerics.lora, 2 * numerics.lora);
}

void choose_tune_strategy(const Plan& plan, const Ranks& ranks, TrainerSettings& settings) {
  Plan& run = settings.as_run;
  const StrategyInfo& strategy = info_of(plan.strategy);
  if (plan.gpus == 1) {
    run.strategy = Strategy::kSingle;
    return;
  }
  if (strategy.hybrid && ranks.replicate > 1) {
    settings.overrides.emplace_back("stack.hsdp_on_fsdp1=false");
    return;
  }
  run.strategy = nearest_fsdp2(plan.strategy);
  if (run.strategy != plan.strategy)
    settings.lost("strategy", fmt::format("torchtune has no {}; the settings run {}", strategy.name,
                                          name_of(run.strategy)));
}

void follow_tune_dtypes(const Plan& plan, TrainerSettings& settings) {
  Plan& run = settings.as_run;
  const DType all = plan.param_dtype;
  const std::string how = fmt::format(
      "torchtune keeps weights, gradients and moments in the dtype that it loads the model in, {}",
      name_of(all));
  if (plan.reduce_dtype != all)
    settings.lost("reduce_dtype", fmt::format("{}; {}", name_of(plan.reduce_dtype), how));
  if (plan.master_dtype != all || plan.moment_dtype != all)
    settings.lost("moment_dtype",
                  fmt::format("master weights in {} with moments in {}; {}",
                              name_of(plan.master_dtype), name_of(plan.moment_dtype), how));
  run.master_dtype = run.moment_dtype = run.reduce_dtype = all;
  if (plan.numerics.quantize != Quantize::kNone && plan.numerics.quantize != Quantize::kNf4) {
    settings.lost("quantize", fmt::format("{}; torchtune quantizes frozen weights to nf4",
                                          name_of(plan.numerics.quantize)));
    run.numerics.quantize = Quantize::kNf4;
  }
  if (plan.offload != Offload::kNone) {
    settings.lost("offload", "fsdp_cpu_offload moves parameters and gradients, too, and stays off");
    run.offload = Offload::kNone;
  }
  if (plan.attention == AttentionKind::kEager) {
    settings.lost("attention", "eager; torchtune calls PyTorch's own fused attention");
    run.attention = AttentionKind::kFlash;
  }
}

/// The loss in the pieces that its losses have, or whole.
bool tune_chunks_loss(const Plan& plan, TrainerSettings& settings) {
  if (plan.loss_chunks <= 1) return false;
  if (plan.loss_chunks != kTuneLossChunks)
    settings.lost("loss_chunks",
                  fmt::format("{}; its chunked loss has {}", plan.loss_chunks, kTuneLossChunks));
  settings.as_run.loss_chunks = kTuneLossChunks;
  return true;
}

}  // namespace

TrainerSettings torchtune_settings(const sim::Job& inputs, const Plan& plan) {
  const TuneBuilder& builder = builder_of(inputs.model.name);
  refuse_beyond_fine_tuning(plan, "torchtune");
  TrainerSettings settings;
  settings.as_run = plan;
  const Ranks ranks = ranks_of(inputs, plan);
  choose_tune_strategy(plan, ranks, settings);
  follow_tune_dtypes(plan, settings);
  const bool checkpoints = checkpoint_all_or_none(plan, inputs.model.layers, "torchtune", settings);
  const bool compiles = inputs.profile.stack.family == "torch-compile";
  const bool chunks = tune_chunks_loss(plan, settings);
  Plan whole = plan;  // the loss is told
  whole.loss_chunks = 0;
  remark_stack(whole, "torchtune", compiles ? "torch-compile" : "torch-eager", settings);
  remark_gather_window(plan, "torchtune", "FSDP2 gathers one layer ahead", settings);
  settings.said(
      "data", "checkpointer, tokenizer.path, the data set and the learning rate are yours to add");
  const Plan& run = settings.as_run;
  const bool hybrid = info_of(run.strategy).hybrid && plan.gpus > 1;
  YamlSource body = tune_model(builder, run.numerics);
  body += YamlSource::format(
      "tokenizer:\n"
      "  _component_: torchtune.models.{}\n"
      "  max_seq_len: {}\n"
      "dataset:\n"
      "  packed: true\n"
      "batch_size: {}\n"
      "gradient_accumulation_steps: {}\n"
      "optimizer:\n"
      "  _component_: {}\n"
      "loss:\n"
      "  _component_: {}\n"
      "enable_activation_checkpointing: {}\n"
      "compile: {}\n"
      "dtype: {}\n",
      bare(builder.tokenizer), plan.seq_len, plan.micro_batch, plan.grad_accum,
      run.numerics.optimizer == Optimizer::kAdamw8bit ? "bitsandbytes.optim.AdamW8bit"
                                                      : "torch.optim.AdamW",
      chunks ? "torchtune.modules.loss.LinearCrossEntropyLoss" : "torch.nn.CrossEntropyLoss",
      yaml_switch(checkpoints), yaml_switch(compiles), bare(name_of(plan.param_dtype)));
  if (plan.gpus > 1 && !hybrid)
    body += YamlSource::format("fsdp_reshard_after_forward: {}\n",
                               yaml_switch(info_of(run.strategy).reshards));
  if (hybrid)
    body += YamlSource::format("data_parallel_replicate_dim: {}\ndata_parallel_shard_dim: {}\n",
                               ranks.replicate, ranks.shard);
  settings.body = body;
  return settings;
}

}  // namespace shardwright::cli
