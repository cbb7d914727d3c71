// SPDX-License-Identifier: Apache-2.0
// torchtune's YAML: a component by its Python path, with its arguments beside it. Keys as its
// recipes read them (recipes/*_finetune_*.py of 0.6); written for lora_finetune_distributed and
// full_finetune_distributed, or those of a single device. Model builders from torchtune/models.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>

#include "cli/trainers/fine_tuning.h"
#include "profiles/data_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/words.h"
#include "sim/core/hf/config.h"

namespace shardwright::cli {
namespace {

constexpr std::int64_t kTuneLossChunks = 8;  // of its chunked losses

std::string without_marks(std::string_view name) {
  std::string letters;
  for (const char c : lower_case(std::string(name))) {
    if (c != '-' && c != '_' && c != '.') letters += c;
  }
  return letters;
}

/// The shipped model that a builder makes: "llama3_1_8b" is llama-3.1-8b; empty: none.
std::string model_of_builder(std::string builder) {
  constexpr std::array<std::string_view, 3> kEndings = {"_instruct", "_base", "_reasoning"};
  for (const std::string_view ending : kEndings) {
    if (builder.ends_with(ending)) builder.erase(builder.size() - ending.size());
  }
  for (const std::string& name : builtin_models(profiles::data_dir() / "models")) {
    if (without_marks(name) == without_marks(builder)) return name;
  }
  return "";
}

void take_tune_component(SettingBox& box, ImportedConfig& to) {
  const std::string component = box.take("model._component_").value_or("");
  std::string builder = component.substr(component.rfind('.') + 1);
  const bool quantized = builder.starts_with("qlora_");
  const bool adapters = quantized || builder.starts_with("lora_");
  if (adapters) builder.erase(0, builder.find('_') + 1);
  to.model = model_of_builder(builder);
  const std::string frozen = quantized ? "frozen weights in nf4" : "";
  if (!to.model.empty()) {
    box.took(fmt::format("model {}{}{}", to.model, quantized ? ", " : "", frozen), to);
  } else if (quantized) {
    box.took(frozen, to);
  }
  if (adapters) {
    to.knobs.parallel.lora = 8;
    box.take_knob("model.lora_rank", "lora", to);
    const std::size_t modules = box.take_section("model.lora_attn_modules");
    const bool mlp = box.is_on("model.apply_lora_to_mlp");
    if (modules < 4 || !mlp) to.assumed.push_back(kAllHaveAdapters);
    box.leave("model.apply_lora_to_output", "the head has no adapter in the prediction", to);
    box.leave("model.use_dora", "predicted as LoRA", to);
  }
  if (quantized || box.is_on("model.quantize_base")) to.knobs.parallel.quantize = Quantize::kNf4;
}

void take_tune_checkpointing(SettingBox& box, ImportedConfig& to) {
  const bool all = box.is_on("enable_activation_checkpointing");
  if (all) box.set_knob("ckpt-layers", "all", to);
  const std::string mode = box.take("ac_mode").value_or("");
  const bool by_op = box.peek("ac_option") == "op";
  const std::int64_t every = by_op ? 0 : box.take_count("ac_option").value_or(0);
  if (!all && mode == "selective") {  // its recipes apply it where the switch is off
    if (every > 0) {
      box.set_knob("ckpt-layers", "all", to);
      to.ckpt_stride = every;
      last_of(to.taken, box.file()).meaning =
          fmt::format("every {} layers are checkpointed", every);
    } else {
      box.set_knob("recompute", "selective-op", to);
    }
  }
  box.pass("ac_option");
}

void take_tune_loss(SettingBox& box, ImportedConfig& to) {
  const std::string loss = box.take("loss._component_").value_or("");
  if (loss.find("Chunked") != loss.npos || loss.find("LinearCrossEntropy") != loss.npos)
    box.set_knob("loss-chunks", fmt::format("{}", kTuneLossChunks), to);
}

void take_tune_strategy(SettingBox& box, ImportedConfig& to) {
  const bool reshards = box.take_switch("fsdp_reshard_after_forward").value_or(true);
  to.strategy = reshards ? Strategy::kFsdp2 : Strategy::kFsdp2NoReshard;
}

void take_tune_shard(SettingBox& box, ImportedConfig& to) {
  const auto shard = box.take_count("data_parallel_shard_dim", -1);
  if (shard.value_or(-1) == -1) return;
  to.shard = std::max<std::int64_t>(1, *shard);
  box.took(fmt::format("sharded over {} ranks", *to.shard), to);
}

void take_tune_dtype(SettingBox& box, ImportedConfig& to) {
  const std::string dtype = box.take("dtype").value_or("bf16");
  if (dtype == "bf16") {
    // Weights, gradients and moments follow the dtype that the model is loaded in.
    to.knobs.reduce_dtype = to.knobs.master_dtype = to.knobs.moment_dtype = DType::kBf16;
    box.took("weights, gradients and moments in bf16", to);
  } else if (dtype == "fp32") {
    to.knobs.param_dtype = DType::kFp32;
    box.took("everything in fp32", to);
  } else {
    box.fail("bf16 or fp32");
  }
}

void take_tune_compiler(SettingBox& box, ImportedConfig& to) {
  to.stack = box.is_on("compile") ? "torch-compile" : "torch-eager";
  box.took(fmt::format("framework {}", to.stack), to);
}

/// What makes another training of it, or none: refused, because a prediction would be of something
/// else.
void refuse_other_losses(SettingBox& box, ImportedConfig&) {
  const auto loss = box.take("loss._component_");
  if (loss && loss->find("CrossEntropy") == loss->npos && loss->find("CEWith") == loss->npos)
    box.fail(
        "a cross entropy, because steps of preference training and distillation are not "
        "predicted");
}

void refuse_no_training(SettingBox& box, ImportedConfig&) {
  if (!box.has("optimizer")) {
    throw Error(
        fmt::format("{}: optimizer is missing, expected the settings of a training", box.file()));
  }
}

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

YamlSource tune_component(const Told& told) {
  const TuneBuilder& builder = builder_of(told.inputs.model.name);
  const char* const adapters = When::nf4(told) ? "qlora_" : When::adapters(told) ? "lora_" : "";
  return YamlSource::format("torchtune.models.{}.{}{}", bare(builder.package), adapters,
                            bare(builder.name));
}

constexpr Row kTorchtune[] = {
    Row::code(refuse_other_losses),
    Row::refused("teacher_model._component_ policy_model._component_",
                 "no such key, because steps of two models are not predicted"),
    Row::code(refuse_no_training),
    Row::code(take_tune_component, "model._component_").at(1, tune_component),
    Row::written("model.lora_attn_modules")
        .at(2, "[q_proj, k_proj, v_proj, output_proj]", When::adapters),
    Row::written("model.apply_lora_to_mlp").at(3, "true", When::adapters),
    Row::written("model.apply_lora_to_output").at(4, "false", When::adapters),
    Row::written("model.lora_rank").at(5, Write::adapter_rank, When::adapters),
    Row::free("model.lora_alpha").at(6, Write::adapter_alpha, When::adapters),
    Row::free("model.lora_dropout model.max_seq_len"),
    Row::written("tokenizer._component_")
        .at(7,
            [](const Told& t) {
              return YamlSource::format("torchtune.models.{}",
                                        bare(builder_of(t.inputs.model.name).tokenizer));
            }),
    Row::of_knob("tokenizer.max_seq_len", "seq-len", "",
                 "sequences are as long as the data; give --seq-len")
        .at(8),
    Row::of_knob("batch_size", "micro-batch", "1").at(10),
    Row::of_knob("gradient_accumulation_steps", "grad-accum").at(11),
    Row::packing("dataset.packed", "max_seq_len").at(9, "true"),
    Row::code(take_tune_strategy, "fsdp_reshard_after_forward")
        .at(17, Write::reshards, When::one_copy),
    Row::degree("tensor_parallel_dim", "tp"),
    Row::degree("context_parallel_dim", "cp"),
    Row::copies("data_parallel_replicate_dim").at(18, Write::replicas, When::hybrid),
    Row::code(take_tune_shard, "data_parallel_shard_dim")
        .at(19, Write::ranks_of_replica, When::hybrid),
    Row::code(take_tune_checkpointing, "enable_activation_checkpointing").on(14, When::checkpoints),
    Row::left("enable_activation_offloading", kStaysOnGpu),
    Row::left("fsdp_cpu_offload", kMovesParameters),
    Row::left("optimizer_in_bwd", "gradients are kept until the optimizer runs here"),
    Row::code(take_tune_loss, "loss._component_")
        .at(13, "torchtune.modules.loss.LinearCrossEntropyLoss", When::chunks_loss,
            "torch.nn.CrossEntropyLoss"),
    Row::optimizer("optimizer._component_")
        .at(12, "bitsandbytes.optim.AdamW8bit", When::adamw_8bit, "torch.optim.AdamW"),
    Row::free("optimizer.fused optimizer.foreach"),
    Row::code(take_tune_dtype, "dtype").at(16, "bf16", When::bf16, "fp32"),
    Row::sets("enable_fp8_training", "precision", "fp8"),
    Row::code(take_tune_compiler, "compile").on(15, When::compiles),
    Row::sections("tokenizer checkpointer dataset metric_logger profiler lr_scheduler compile "
                  "clip_grad_norm cudnn_deterministic_mode"),
    Row::free("device shuffle seed resume_from_checkpoint low_cpu_ram memory_efficient_fsdp_wrap "
              "save_adapter_weights_only output_dir custom_sharded_layers use_output_dir_path "
              "enable_async_checkpointing"),
};

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
void follow_tune_loss(const Plan& plan, TrainerSettings& settings) {
  if (plan.loss_chunks <= 1) return;
  if (plan.loss_chunks != kTuneLossChunks)
    settings.lost("loss_chunks",
                  fmt::format("{}; its chunked loss has {}", plan.loss_chunks, kTuneLossChunks));
  settings.as_run.loss_chunks = kTuneLossChunks;
}

}  // namespace

bool is_torchtune(const SettingBox& box) {
  return box.peek("model._component_").value_or("").starts_with("torchtune.");
}

void read_torchtune(SettingBox& box, ImportedConfig& to) {
  read_rows(kTorchtune, box, to);
}

TrainerSettings torchtune_settings(const sim::Job& inputs, const Plan& plan) {
  static_cast<void>(builder_of(inputs.model.name));
  refuse_beyond_fine_tuning(plan, "torchtune");
  TrainerSettings settings;
  settings.as_run = plan;
  const Ranks ranks = ranks_of(inputs, plan);
  choose_tune_strategy(plan, ranks, settings);
  follow_tune_dtypes(plan, settings);
  const bool checkpoints = checkpoint_all_or_none(plan, inputs.model.layers, "torchtune", settings);
  follow_tune_loss(plan, settings);
  Plan whole = plan;  // the loss is told
  whole.loss_chunks = 0;
  const bool compiles = inputs.profile.stack.family == "torch-compile";
  remark_stack(whole, "torchtune", compiles ? "torch-compile" : "torch-eager", settings);
  remark_gather_window(plan, "torchtune", "FSDP2 gathers one layer ahead", settings);
  settings.said(
      "data", "checkpointer, tokenizer.path, the data set and the learning rate are yours to add");
  const auto sharding = plan.gpus > 1 ? TrainerSharding::kFsdp2 : TrainerSharding::kNone;
  settings.body =
      yaml_of(kTorchtune, {inputs, plan, settings.as_run, ranks, sharding, checkpoints});
  return settings;
}

}  // namespace shardwright::cli
