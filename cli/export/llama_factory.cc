// SPDX-License-Identifier: Apache-2.0
// LLaMA-Factory's YAML. Option names from its src/llamafactory/hparams and Transformers'
// TrainingArguments; DeepSpeed's files are those that ship with it in examples/deepspeed.
#include <fmt/core.h>

#include <string>

#include "cli/export/module_names.h"
#include "cli/export/settings.h"
#include "cli/export/trainer_yaml.h"

namespace shardwright::cli {
namespace {

YamlSource factory_adapter(const Numerics& numerics) {
  if (numerics.lora == 0) return "finetuning_type: full\n";
  YamlSource text =
      YamlSource::format("finetuning_type: lora\nlora_rank: {}\nlora_alpha: {}\nlora_target: all\n",
                         numerics.lora, 2 * numerics.lora);
  if (numerics.quantize == Quantize::kNf4) text += "quantization_bit: 4\nquantization_type: nf4\n";
  if (numerics.quantize == Quantize::kInt8) text += "quantization_bit: 8\n";
  return text;
}

YamlSource factory_sharding(const sim::Job& inputs, TrainerRun run, const Plan& as_run) {
  if (run.sharding == TrainerSharding::kZero)
    return YamlSource::format("deepspeed: examples/deepspeed/ds_z{}_config.json\n",
                              info_of(as_run.strategy).zero_stage());
  if (run.sharding != TrainerSharding::kFsdp1 && run.sharding != TrainerSharding::kFsdp2) return "";
  const bool reshards = info_of(as_run.strategy).reshards;
  YamlSource text = YamlSource::format(
      "fsdp: {} auto_wrap\nfsdp_config:\n  transformer_layer_cls_to_wrap: {}\n",
      reshards ? "full_shard" : "shard_grad_op", bare(module_names(inputs.model).layer_class));
  if (run.sharding == TrainerSharding::kFsdp2)
    text +=
        YamlSource::format("  version: 2\n  reshard_after_forward: {}\n", yaml_switch(reshards));
  return text;
}

/// Its files know DeepSpeed's stages 0, 2 and 3, and one copy of the parameters.
Plan in_factory_words(const Plan& plan, TrainerSettings& settings) {
  Plan told = plan;
  if (plan.strategy == Strategy::kZero1) {
    told.strategy = Strategy::kZero2;
    settings.lost("strategy",
                  "zero1; LLaMA-Factory ships DeepSpeed's stages 0, 2 and 3, so stage 2");
  }
  if (info_of(plan.strategy).hybrid) {
    told.strategy = Strategy::kFsdp2;
    told.shard_group = 0;
    settings.lost("strategy", "hsdp; the settings shard one copy of the parameters over all GPUs");
  }
  if (plan.numerics.quantize == Quantize::kFp8) {
    told.numerics.quantize = Quantize::kInt8;
    settings.lost("quantize",
                  "fp8; LLaMA-Factory quantizes frozen weights to 4 or 8 bits, so int8");
  }
  const bool pure = plan.master_dtype == DType::kBf16 && plan.moment_dtype == DType::kBf16;
  if (!pure && plan.param_dtype == DType::kBf16 &&
      (plan.master_dtype != DType::kFp32 || plan.moment_dtype != DType::kFp32)) {
    told.master_dtype = told.moment_dtype = DType::kFp32;
    settings.lost("moment_dtype",
                  "master weights and moments are both fp32 or, with pure_bf16, both bf16");
  }
  return told;
}

}  // namespace

TrainerSettings llama_factory_settings(const sim::Job& inputs, const Plan& plan) {
  TrainerSettings settings;
  const Plan told = in_factory_words(plan, settings);
  const TrainerRun run = follow_on_trainer(inputs, told, "LLaMA-Factory", settings);
  const Plan& as_run = settings.as_run;
  const bool bf16 = plan.param_dtype == DType::kBf16;
  YamlSource body = YamlSource::format(
      "model_name_or_path: {}\n"
      "stage: sft\n"
      "do_train: true\n"
      "{}"
      "cutoff_len: {}\n"
      "packing: true\n"
      "per_device_train_batch_size: {}\n"
      "gradient_accumulation_steps: {}\n"
      "disable_gradient_checkpointing: {}\n"
      "bf16: {}\n"
      "flash_attn: {}\n"
      "optim: {}\n",
      string_literal(inputs.model_name), factory_adapter(as_run.numerics), plan.seq_len,
      plan.micro_batch, plan.grad_accum, yaml_switch(!run.checkpoints), yaml_switch(bf16),
      plan.attention == AttentionKind::kFlash ? "fa2" : "disabled",
      plan.numerics.optimizer == Optimizer::kAdamw8bit ? "adamw_bnb_8bit" : "adamw_torch");
  if (bf16 && as_run.master_dtype == DType::kBf16) body += "pure_bf16: true\n";
  settings.body = body + factory_sharding(inputs, run, as_run);
  return settings;
}

}  // namespace shardwright::cli
