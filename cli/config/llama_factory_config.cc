// SPDX-License-Identifier: Apache-2.0
// LLaMA-Factory's YAML. Option names and defaults from its src/llamafactory/hparams and, below
// them, Transformers' TrainingArguments.
#include <fmt/core.h>

#include "cli/config/imported.h"
#include "cli/config/trainer_words.h"

namespace shardwright::cli {
namespace {

constexpr std::int64_t kFactoryRank = 8, kFactoryCutoff = 2048, kFactoryBatch = 8;

/// What makes another training of it: refused, because a prediction would be of something else.
void refuse_other_stages(SettingBox& box) {
  const std::string stage = box.take({"stage"}).value_or("sft");
  if (stage != "pt" && stage != "sft")
    box.fail("pt or sft, because steps of preference training are not predicted");
  const std::string method = box.peek("finetuning_type").value_or("lora");
  if (method != "lora" && method != "full") {
    static_cast<void>(box.take({"finetuning_type"}));
    box.fail("lora or full");
  }
  for (const char* other :
       {"use_galore", "use_apollo", "use_badam", "use_dora", "use_llama_pro", "mixture_of_depths",
        "shift_attn", "use_kt", "tensor_model_parallel_size", "pipeline_model_parallel_size",
        "expert_model_parallel_size"}) {
    if (lower_case_word(box.take({other}).value_or("false")) != "false")
      box.fail("no such key, because such steps are not predicted");
  }
}

void take_factory_adapter(SettingBox& box, ImportedConfig& to) {
  const std::string method = box.take({"finetuning_type"}).value_or("lora");
  if (method == "lora") {
    to.knobs.parallel.lora = kFactoryRank;
    box.took("adapters of low rank", to);
    box.take_knob({"lora_rank"}, "lora", to);
    const std::string target = box.take({"lora_target"}).value_or("all");
    if (target != "all") to.assumed.push_back("all projections have adapters in the prediction");
    box.leave({"additional_target"},
              "modules that are trained whole beside adapters are not predicted", to);
  }
  for (const char* plain :
       {"lora_rank", "lora_target", "lora_alpha", "lora_dropout", "use_rslora", "pissa_init",
        "pissa_iter", "loraplus_lr_ratio", "create_new_adapter"}) {
    static_cast<void>(box.take({plain}));
  }
  const auto bits = box.take_count({"quantization_bit"});
  if (!bits) return;
  if (!to.knobs.parallel.lora) box.fail("no such key beside finetuning_type full");
  if (*bits != 4 && *bits != 8) box.fail("4 or 8");
  to.knobs.parallel.quantize = *bits == 4 ? Quantize::kNf4 : Quantize::kInt8;
  box.took(fmt::format("frozen weights in {}", name_of(*to.knobs.parallel.quantize)), to);
  if (box.peek("quantization_type").value_or("nf4") != "nf4")
    box.leave({"quantization_type"}, "weights of 4 bits are predicted as nf4", to);
  static_cast<void>(box.take({"quantization_type"}));
  static_cast<void>(box.take({"quantization_method"}));
  static_cast<void>(box.take({"double_quantization"}));
}

void take_factory_sharding(SettingBox& box, ImportedConfig& to) {
  to.strategy = Strategy::kDdp;
  if (take_deepspeed_file(box, to)) return;
  std::string words = lower_case_word(box.take({"fsdp"}).value_or(""));
  for (const std::string& word : box.take_list("fsdp")) words += lower_case_word(word) + " ";
  if (words.empty()) return;
  const bool two =
      box.take({"fsdp_config.version", "fsdp_config.fsdp_version"}).value_or("1") == "2";
  const auto reshard = box.take_switch({"fsdp_config.reshard_after_forward"});
  const bool never = !reshard.value_or(words.find("shard_grad_op") == words.npos);
  to.strategy = two ? (never ? Strategy::kFsdp2NoReshard : Strategy::kFsdp2)
                    : (never ? Strategy::kFsdp1GradOp : Strategy::kFsdp1);
  if (words.find("hybrid") != words.npos) to.strategy = Strategy::kHsdp;
  box.took(fmt::format("strategy {}", name_of(to.strategy)), to);
  for (const char* plain : {"transformer_layer_cls_to_wrap", "activation_checkpointing",
                            "cpu_ram_efficient_loading", "state_dict_type", "use_orig_params"}) {
    static_cast<void>(box.take({fmt::format("fsdp_config.{}", plain)}));
  }
  to.overrides.emplace_back("stack.wraps_embedding_and_head=false");
}

void take_factory_precision(SettingBox& box, ImportedConfig& to) {
  const bool pure = box.take_switch({"pure_bf16"}).value_or(false);
  const bool bf16 = box.take_switch({"bf16"}).value_or(false) || pure;
  const bool fp16 = box.take_switch({"fp16"}).value_or(false);
  if (fp16) {
    box.set_knob("precision", "fp16", to);
  } else if (!bf16) {
    to.knobs.param_dtype = DType::kFp32;
    to.assumed.push_back("neither bf16 nor fp16 is true: fp32, the Trainer's default");
  }
  if (bf16 || fp16) to.knobs.reduce_dtype = DType::kBf16;
  if (pure) to.knobs.master_dtype = to.knobs.moment_dtype = DType::kBf16;
  if (box.take_switch({"fp8"}).value_or(false)) box.set_knob("precision", "fp8", to);
}

void take_factory_batch(SettingBox& box, ImportedConfig& to) {
  if (!box.take_knob({"cutoff_len"}, "seq-len", to)) {
    to.knobs.seq_len = kFactoryCutoff;
    to.assumed.push_back(
        fmt::format("cutoff_len is not said: {}, LLaMA-Factory's default", kFactoryCutoff));
  }
  if (!box.take_knob({"per_device_train_batch_size"}, "micro-batch", to)) {
    to.knobs.micro_batch = kFactoryBatch;
    to.assumed.push_back(fmt::format(
        "per_device_train_batch_size is not said: {}, the Trainer's default", kFactoryBatch));
  }
  box.take_knob({"gradient_accumulation_steps"}, "grad-accum", to);
  const bool packs = box.take_switch({"packing"}).value_or(false) ||
                     box.take_switch({"neat_packing"}).value_or(false);
  if (!packs) {
    to.assumed.push_back(
        "without packing most sequences are shorter than cutoff_len: times and "
        "memory are of full ones");
  }
}

}  // namespace

bool is_llama_factory(const SettingBox& box) {
  return box.has("finetuning_type") || (box.has("model_name_or_path") && box.has("stage"));
}

void read_llama_factory(SettingBox& box, ImportedConfig& to) {
  refuse_other_stages(box);
  if (const auto model = box.take({"model_name_or_path"})) {
    to.model = *model;
    box.took(fmt::format("model {}", *model), to);
  }
  take_factory_batch(box, to);
  take_factory_sharding(box, to);
  if (!box.take_switch({"disable_gradient_checkpointing"}).value_or(false)) {
    to.knobs.ckpt_layers = CheckpointedLayers{true, 0};
    to.assumed.push_back(
        "all layers are checkpointed, as disable_gradient_checkpointing is not true");
  }
  take_factory_adapter(box, to);
  take_optimizer_word(box, "optim", to);
  if (box.take_switch({"use_muon"}).value_or(false)) box.set_knob("optimizer", "muon", to);
  take_factory_precision(box, to);
  if (lower_case_word(box.take({"flash_attn"}).value_or("auto")) == "disabled")
    box.set_knob("attention", "eager", to);
  to.stack = "hf-eager";
  if (box.take_switch({"enable_liger_kernel"}).value_or(false)) take_fused_loss(box, to);
  box.leave({"use_unsloth"}, "its kernels are not predicted", to);
  box.leave({"use_unsloth_gc"}, "what is kept stays on the GPU here", to);
  for (const char* plain :
       {"trust_remote_code", "do_train", "do_eval", "template", "overwrite_cache", "plot_loss",
        "max_samples", "ddp_timeout", "val_size", "report_to", "preprocessing_num_workers",
        "preprocessing_batch_size", "per_device_eval_batch_size", "resume_from_checkpoint",
        "media_dir", "adapter_name_or_path", "use_reentrant_gc", "upcast_layernorm", "run_name"}) {
    static_cast<void>(box.take({plain}));
  }
}

}  // namespace shardwright::cli
