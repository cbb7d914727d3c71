// SPDX-License-Identifier: Apache-2.0
// axolotl's YAML. Option names from its axolotl/utils/schemas (0.19); DeepSpeed's files are those
// that ship with it in deepspeed_configs.
#include <fmt/core.h>

#include <string>

#include "cli/export/module_names.h"
#include "cli/export/settings.h"
#include "cli/export/trainer_yaml.h"

namespace shardwright::cli {
namespace {

YamlSource axolotl_adapter(const Numerics& numerics) {
  if (numerics.lora == 0) return "";
  const bool four = numerics.quantize == Quantize::kNf4;
  YamlSource text = YamlSource::format("adapter: {}\n", four ? "qlora" : "lora");
  if (four) text += "load_in_4bit: true\n";
  if (numerics.quantize == Quantize::kInt8) text += "load_in_8bit: true\n";
  return text + YamlSource::format("lora_r: {}\nlora_alpha: {}\nlora_target_linear: true\n",
                                   numerics.lora, 2 * numerics.lora);
}

YamlSource axolotl_sharding(const sim::Job& inputs, TrainerRun run, TrainerSettings& settings) {
  const Plan& plan = settings.as_run;
  if (run.sharding == TrainerSharding::kZero)
    return YamlSource::format("deepspeed: deepspeed_configs/zero{}.json\n",
                              info_of(plan.strategy).zero_stage());
  if (run.sharding != TrainerSharding::kFsdp1 && run.sharding != TrainerSharding::kFsdp2) return "";
  const bool two = run.sharding == TrainerSharding::kFsdp2;
  YamlSource text;
  if (info_of(plan.strategy).hybrid) {
    const Ranks ranks = ranks_of(inputs, plan);
    text += YamlSource::format("dp_replicate_size: {}\ndp_shard_size: {}\n", ranks.replicate,
                               ranks.shard);
    settings.overrides.emplace_back("stack.hsdp_on_fsdp1=false");
  }
  text += YamlSource::format(
      "fsdp_version: {}\n"
      "fsdp_config:\n"
      "  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
      "  transformer_layer_cls_to_wrap: {}\n"
      "  state_dict_type: SHARDED_STATE_DICT\n"
      "  offload_params: false\n",
      two ? 2 : 1, bare(module_names(inputs.model).layer_class));
  const bool reshards = info_of(plan.strategy).reshards;
  return text + (two ? YamlSource::format("  reshard_after_forward: {}\n", yaml_switch(reshards))
                     : YamlSource::format("  sharding_strategy: {}\n",
                                          reshards ? "FULL_SHARD" : "SHARD_GRAD_OP"));
}

}  // namespace

TrainerSettings axolotl_settings(const sim::Job& inputs, const Plan& plan) {
  TrainerSettings settings;
  const TrainerRun run = follow_on_trainer(inputs, plan, "axolotl", settings);
  Plan& as_run = settings.as_run;
  if (plan.numerics.quantize == Quantize::kFp8) {
    settings.lost("quantize",
                  "fp8; axolotl quantizes frozen weights to 4 or 8 bits of integers, so int8");
    as_run.numerics.quantize = Quantize::kInt8;
  }
  if (plan.param_dtype == DType::kBf16 &&
      (plan.master_dtype != DType::kFp32 || plan.moment_dtype != DType::kFp32)) {
    settings.lost("moment_dtype",
                  "master weights and moments follow the model's and are predicted as fp32");
    as_run.master_dtype = as_run.moment_dtype = DType::kFp32;
  }
  YamlSource body = YamlSource::format(
      "base_model: {}\n"
      "sequence_len: {}\n"
      "sample_packing: true\n"
      "pad_to_sequence_len: true\n"
      "micro_batch_size: {}\n"
      "gradient_accumulation_steps: {}\n"
      "gradient_checkpointing: {}\n"
      "bf16: {}\n"
      "attn_implementation: {}\n"
      "optimizer: {}\n",
      string_literal(inputs.model_name), plan.seq_len, plan.micro_batch, plan.grad_accum,
      yaml_switch(run.checkpoints), yaml_switch(plan.param_dtype == DType::kBf16),
      plan.attention == AttentionKind::kFlash ? "flash_attention_2" : "eager",
      plan.numerics.optimizer == Optimizer::kAdamw8bit ? "adamw_bnb_8bit" : "adamw_torch_fused");
  body += axolotl_adapter(as_run.numerics);
  settings.body = body + axolotl_sharding(inputs, run, settings);
  return settings;
}

}  // namespace shardwright::cli
