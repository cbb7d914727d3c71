// SPDX-License-Identifier: Apache-2.0
// LLaMA-Factory's YAML. Option names and defaults from its src/llamafactory/hparams and, below
// them, Transformers' TrainingArguments; DeepSpeed's files are those that ship with it in
// examples/deepspeed.
#include <fmt/core.h>

#include "cli/trainers/fine_tuning.h"
#include "sim/core/base/words.h"

namespace shardwright::cli {
namespace {

/// What makes another training of it: refused, because a prediction would be of something else.
void refuse_other_stages(SettingBox& box, ImportedConfig&) {
  const std::string stage = box.take("stage").value_or("sft");
  if (stage != "pt" && stage != "sft")
    box.fail("pt or sft, because steps of preference training are not predicted");
  const std::string method = box.peek("finetuning_type").value_or("lora");
  if (method != "lora" && method != "full") {
    box.pass("finetuning_type");
    box.fail("lora or full");
  }
}

void take_factory_adapter(SettingBox& box, ImportedConfig& to) {
  if (box.take("finetuning_type").value_or("lora") == "lora") {
    to.knobs.parallel.lora = 8;
    box.took("adapters of low rank", to);
    box.take_knob("lora_rank", "lora", to);
    if (box.take("lora_target").value_or("all") != "all") to.assumed.push_back(kAllHaveAdapters);
    box.leave("additional_target", kTrainedWhole, to);
  }
  box.pass("lora_rank lora_target");
}

void take_factory_bits(SettingBox& box, ImportedConfig& to) {
  const auto bits = box.take_count("quantization_bit");
  if (!bits) return;
  if (!to.knobs.parallel.lora) box.fail("no such key beside finetuning_type full");
  if (*bits != 4 && *bits != 8) box.fail("4 or 8");
  to.knobs.parallel.quantize = *bits == 4 ? Quantize::kNf4 : Quantize::kInt8;
  box.took(fmt::format("frozen weights in {}", name_of(*to.knobs.parallel.quantize)), to);
  if (box.peek("quantization_type").value_or("nf4") != "nf4")
    box.leave("quantization_type", "weights of 4 bits are predicted as nf4", to);
  box.pass("quantization_type quantization_method double_quantization");
}

void take_factory_sharding(SettingBox& box, ImportedConfig& to) {
  to.strategy = Strategy::kDdp;
  if (take_deepspeed_file(box, to)) return;
  std::string words = lower_case(box.take("fsdp").value_or(""));
  for (const std::string& word : box.take_list("fsdp")) words += lower_case(word) + " ";
  if (words.empty()) return;
  const bool two = box.take("fsdp_config.version fsdp_config.fsdp_version").value_or("1") == "2";
  const auto reshards = box.take_switch("fsdp_config.reshard_after_forward");
  take_fsdp_words(box, words, two, reshards, to);
  box.pass(
      "transformer_layer_cls_to_wrap activation_checkpointing cpu_ram_efficient_loading "
      "state_dict_type use_orig_params",
      "fsdp_config.");
}

void take_factory_checkpointing(SettingBox& box, ImportedConfig& to) {
  if (box.is_on("disable_gradient_checkpointing")) return;
  to.knobs.ckpt_layers = CheckpointedLayers{true, 0};
  to.assumed.push_back(
      "all layers are checkpointed, as disable_gradient_checkpointing is not true");
}

void take_factory_types(SettingBox& box, ImportedConfig& to) {
  const bool pure = box.is_on("pure_bf16");
  const bool bf16 = box.is_on("bf16") || pure;
  const bool fp16 = box.is_on("fp16");
  if (fp16) {
    box.set_knob("precision", "fp16", to);
  } else if (!bf16) {
    to.knobs.param_dtype = DType::kFp32;
    to.assumed.push_back("neither bf16 nor fp16 is true: fp32, the Trainer's default");
  }
  if (bf16 || fp16) to.knobs.reduce_dtype = DType::kBf16;
  if (pure) to.knobs.master_dtype = to.knobs.moment_dtype = DType::kBf16;
}

void take_factory_attention(SettingBox& box, ImportedConfig& to) {
  if (lower_case(box.take("flash_attn").value_or("auto")) == "disabled")
    box.set_knob("attention", "eager", to);
  to.stack = "hf-eager";
}

constexpr Row kLlamaFactory[] = {
    Row::code(refuse_other_stages),
    Row::refused("use_galore use_apollo use_badam use_dora use_llama_pro mixture_of_depths "
                 "shift_attn use_kt tensor_model_parallel_size pipeline_model_parallel_size "
                 "expert_model_parallel_size",
                 "no such key, because such steps are not predicted"),
    Row::model("model_name_or_path").at(1, Write::model),
    Row::written("stage").at(2, "sft"),
    Row::of_knob("cutoff_len", "seq-len", "2048", "LLaMA-Factory's default").at(10),
    Row::of_knob("per_device_train_batch_size", "micro-batch", "8", "the Trainer's default").at(12),
    Row::of_knob("gradient_accumulation_steps", "grad-accum").at(13),
    Row::packing("packing neat_packing", "cutoff_len").at(11, "true"),
    Row::code(take_factory_sharding),
    Row::written("deepspeed")
        .at(
            19,
            [](const Told& t) {
              return YamlSource::format("examples/deepspeed/ds_z{}_config.json",
                                        info_of(t.run.strategy).zero_stage());
            },
            When::zero),
    Row::written("fsdp").at(
        20,
        [](const Told& t) {
          return YamlSource(When::reshards(t) ? "full_shard auto_wrap" : "shard_grad_op auto_wrap");
        },
        When::fsdp),
    Row::written("fsdp_config.transformer_layer_cls_to_wrap")
        .at(21, Write::layer_class, When::fsdp),
    Row::written("fsdp_config.version").at(22, "2", When::fsdp2),
    Row::written("fsdp_config.reshard_after_forward").at(23, Write::reshards, When::fsdp2),
    Row::code(take_factory_checkpointing, "disable_gradient_checkpointing")
        .at(14, "false", When::checkpoints, "true"),
    Row::code(take_factory_adapter, "finetuning_type").at(4, "lora", When::adapters, "full"),
    Row::written("lora_rank").at(5, Write::adapter_rank, When::adapters),
    Row::free("lora_alpha").at(6, Write::adapter_alpha, When::adapters),
    Row::written("lora_target").at(7, "all", When::adapters),
    Row::free("lora_dropout use_rslora pissa_init pissa_iter loraplus_lr_ratio "
              "create_new_adapter"),
    Row::code(take_factory_bits),
    Row::written("quantization_bit").at(8, "4", When::nf4),
    Row::written("quantization_bit").at(8, "8", When::int8),
    Row::written("quantization_type").at(9, "nf4", When::nf4),
    Row::optimizer("optim").at(17, "adamw_bnb_8bit", When::adamw_8bit, "adamw_torch"),
    Row::sets("use_muon", "optimizer", "muon"),
    Row::code(take_factory_types, "bf16").on(15, When::bf16),
    Row::written("pure_bf16")
        .at(18, "true",
            [](const Told& t) { return When::bf16(t) && t.run.master_dtype == DType::kBf16; }),
    Row::sets("fp8", "precision", "fp8"),
    Row::code(take_factory_attention, "flash_attn").at(16, "fa2", When::flash, "disabled"),
    Row::sets("enable_liger_kernel", "loss-chunks", kFusedLoss),
    Row::left("use_unsloth", "its kernels are not predicted"),
    Row::left("use_unsloth_gc", kStaysOnGpu),
    Row::free("do_train").at(3, "true"),
    Row::free("trust_remote_code do_eval template overwrite_cache plot_loss max_samples "
              "ddp_timeout val_size report_to preprocessing_num_workers preprocessing_batch_size "
              "per_device_eval_batch_size resume_from_checkpoint media_dir adapter_name_or_path "
              "use_reentrant_gc upcast_layernorm run_name"),
};

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

bool is_llama_factory(const SettingBox& box) {
  return box.has("finetuning_type") || (box.has("model_name_or_path") && box.has("stage"));
}

void read_llama_factory(SettingBox& box, ImportedConfig& to) {
  read_rows(kLlamaFactory, box, to);
}

TrainerSettings llama_factory_settings(const sim::Job& inputs, const Plan& plan) {
  TrainerSettings settings;
  const Plan told = in_factory_words(plan, settings);
  settings.body =
      yaml_of(kLlamaFactory, follow_on_trainer(inputs, told, "LLaMA-Factory", settings));
  return settings;
}

}  // namespace shardwright::cli
