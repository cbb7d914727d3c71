// SPDX-License-Identifier: Apache-2.0
// axolotl's YAML. Option names and defaults from its axolotl/utils/schemas (0.19).
#include <fmt/core.h>

#include "cli/config/imported.h"
#include "cli/config/trainer_words.h"

namespace shardwright::cli {
namespace {

void take_sharding(SettingBox& box, ImportedConfig& to) {
  to.strategy = Strategy::kDdp;
  if (take_deepspeed_file(box, to)) return;
  const bool empty = box.peek("fsdp_config").has_value();  // a key with nothing below it
  if ((!box.has("fsdp_config") || empty) && !box.has("fsdp_version") && !box.has("fsdp[0]")) return;
  // Words of Transformers: full_shard, shard_grad_op, hybrid_shard, auto_wrap, offload.
  std::string words;
  for (const std::string& word : box.take_list("fsdp")) words += lower_case_word(word) + " ";
  const bool two = box.take({"fsdp_version", "fsdp_config.fsdp_version"}).value_or("1") == "2";
  const auto reshard = box.take_switch(
      {"fsdp_config.reshard_after_forward", "fsdp_config.fsdp_reshard_after_forward"});
  const std::string sharding = lower_case_word(
      box.take({"fsdp_config.sharding_strategy", "fsdp_config.fsdp_sharding_strategy"})
          .value_or(words));
  const bool never = !reshard.value_or(sharding.find("shard_grad_op") == sharding.npos);
  to.strategy = two ? (never ? Strategy::kFsdp2NoReshard : Strategy::kFsdp2)
                    : (never ? Strategy::kFsdp1GradOp : Strategy::kFsdp1);
  if (sharding.find("hybrid") != sharding.npos) to.strategy = Strategy::kHsdp;
  box.took(fmt::format("strategy {}", name_of(to.strategy)), to);
  if (box.take_switch(
             {"fsdp_config.activation_checkpointing", "fsdp_config.fsdp_activation_checkpointing"})
          .value_or(false))
    box.set_knob("ckpt-layers", "all", to);
  constexpr const char* kOffload = "it moves parameters and gradients to the host";
  box.leave({"fsdp_config.offload_params", "fsdp_config.fsdp_offload_params"}, kOffload, to);
  if (words.find("offload") != words.npos) to.not_taken.push_back({"fsdp", "offload", kOffload});
  for (const char* plain : {"auto_wrap_policy", "transformer_layer_cls_to_wrap", "state_dict_type",
                            "cpu_ram_efficient_loading", "final_state_dict_type", "use_orig_params",
                            "sync_module_states", "limit_all_gathers"}) {
    static_cast<void>(box.take({fmt::format("fsdp_config.fsdp_{}", plain)}));
    static_cast<void>(box.take({fmt::format("fsdp_config.{}", plain)}));
  }
  to.overrides.emplace_back("stack.wraps_embedding_and_head=false");
}

void take_adapter(SettingBox& box, ImportedConfig& to) {
  const auto adapter = box.take({"adapter"});
  const std::string word = lower_case_word(adapter.value_or(""));
  if (word == "lora" || word == "qlora") {
    box.took("adapters of low rank", to);
    if (!box.take_knob({"lora_r"}, "lora", to)) to.knobs.parallel.lora = 8;
  } else if (adapter) {
    box.fail("lora, qlora or none");
  }
  static_cast<void>(box.take({"lora_r"}));
  static_cast<void>(box.take({"lora_alpha"}));
  static_cast<void>(box.take({"lora_dropout"}));
  const bool four = box.take_switch({"load_in_4bit"}).value_or(word == "qlora");
  const bool eight = box.take_switch({"load_in_8bit"}).value_or(false);
  if (to.knobs.parallel.lora && (four || eight)) {
    to.knobs.parallel.quantize = four ? Quantize::kNf4 : Quantize::kInt8;
    to.taken.push_back({four ? "load_in_4bit" : "load_in_8bit", "true",
                        fmt::format("frozen weights in {}", name_of(*to.knobs.parallel.quantize))});
  }
  const std::size_t modules = box.take_section("lora_target_modules");
  const bool linear = box.take_switch({"lora_target_linear"}).value_or(false);
  if (to.knobs.parallel.lora && modules > 0 && !linear)
    to.assumed.push_back("all projections have adapters in the prediction");
  if (box.take_section("lora_modules_to_save") > 0 && to.knobs.parallel.lora) {
    to.not_taken.push_back({"lora_modules_to_save", "a list",
                            "modules that are trained whole beside adapters are not predicted"});
  }
  for (const char* kernel : {"lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel",
                             "lora_fan_in_fan_out", "lora_model_dir", "peft_use_rslora"}) {
    static_cast<void>(box.take({kernel}));
  }
}

/// Losses that never hold all logits: cut cross entropy by its plugin alone, others by keys.
void take_losses(SettingBox& box, ImportedConfig& to) {
  const auto cut = box.take_switch({"cut_cross_entropy"});
  for (int i = 0;; ++i) {
    const auto plugin = box.take({fmt::format("plugins[{}]", i)});
    if (!plugin) break;
    if (plugin->ends_with("CutCrossEntropyPlugin") && cut.value_or(true)) take_fused_loss(box, to);
    if (plugin->ends_with("KDPlugin") || plugin->ends_with("DiffusionPlugin"))
      box.fail("no such plugin, because its steps are not predicted");
  }
  if (box.take_switch({"liger_fused_linear_cross_entropy"}).value_or(false))
    take_fused_loss(box, to);
  const std::int64_t chunks = box.take_count({"chunked_cross_entropy_num_chunks"}).value_or(8);
  if (box.take_switch({"chunked_cross_entropy"}).value_or(false))
    box.set_knob("loss-chunks", fmt::format("{}", chunks), to);
}

/// What makes another training of it: refused, because a prediction would be of something else.
void refuse_other_training(SettingBox& box) {
  if (box.take({"rl"}))
    box.fail("no such key, because steps of preference training are not predicted");
  if (box.has("unfrozen_parameters[0]")) {
    static_cast<void>(box.take({"unfrozen_parameters[0]"}));
    box.fail("no such list, because partly frozen models are not predicted");
  }
  for (const char* head : {"reward_model", "process_reward_model", "num_labels"}) {
    if (box.take({head}).value_or("false") != "false")
      box.fail("no such key, because heads for other tasks are not predicted");
  }
}

}  // namespace

bool is_axolotl(const SettingBox& box) {
  return box.has("base_model");
}

void read_axolotl(SettingBox& box, ImportedConfig& to) {
  refuse_other_training(box);
  if (const auto model = box.take({"base_model"})) {
    to.model = *model;
    box.took(fmt::format("model {}", *model), to);
  }
  if (!box.take_knob({"sequence_len"}, "seq-len", to)) {
    to.knobs.seq_len = 512;
    to.assumed.push_back("sequence_len is not said: 512, axolotl's default");
  }
  if (!box.take_knob({"micro_batch_size"}, "micro-batch", to))
    to.assumed.push_back("micro_batch_size is not said: 1, axolotl's default");
  box.take_knob({"gradient_accumulation_steps"}, "grad-accum", to);
  box.leave({"batch_size"}, "axolotl accumulates gradient_accumulation_steps, 1 unless said", to);
  take_sharding(box, to);
  if (const auto text = box.take({"gradient_checkpointing"})) {
    const std::string word = lower_case_word(*text);
    // unsloth: an older word for offload
    const bool offloads = word.starts_with("offload") || word == "unsloth";
    if (word == "true" || offloads) box.set_knob("ckpt-layers", "all", to);
    if (offloads) to.not_taken.push_back({box.key(), *text, "what is kept stays on the GPU here"});
    if (word != "true" && word != "false" && !offloads) box.fail("true, false or offload");
  }
  static_cast<void>(box.take({"gradient_checkpointing_kwargs.use_reentrant"}));
  box.leave({"activation_offloading"}, "what is kept stays on the GPU here", to);
  take_adapter(box, to);
  take_optimizer_word(box, "optimizer", to);
  if (box.is_auto("bf16"))
    to.assumed.push_back("bf16 is auto: up to the machine, taken as bf16 (--param-dtype)");
  const std::string bf16 = lower_case_word(box.take({"bf16", "bfloat16"}).value_or("auto"));
  const std::string fp16 = lower_case_word(box.take({"fp16", "float16"}).value_or("false"));
  if (bf16 == "false" && fp16 == "true") {
    box.set_knob("precision", "fp16", to);
  } else if (bf16 == "false") {
    to.knobs.param_dtype = DType::kFp32;
  }
  if (bf16 != "false" || fp16 == "true") to.knobs.reduce_dtype = DType::kBf16;
  if (box.take_switch({"fp8"}).value_or(false)) box.set_knob("precision", "fp8", to);
  if (to.knobs.param_dtype == DType::kFp32)
    box.leave({"tf32"}, "fp32 products are not predicted in tf32", to);
  for (const auto& [key, knob] : {std::pair{"tensor_parallel_size", "tp"},
                                  {"context_parallel_size", "cp"},
                                  {"sequence_parallel_degree", "cp"},
                                  {"expert_parallel_size", "ep"}}) {
    if (const auto ranks = box.take_count({key}); ranks.value_or(1) > 1)
      box.set_knob(knob, fmt::format("{}", *ranks), to);
  }
  if (const auto copies = box.take_count({"dp_replicate_size"}); copies.value_or(1) > 1) {
    to.replicate = *copies;
    to.strategy = Strategy::kHsdp;
    to.overrides.emplace_back("stack.hsdp_on_fsdp1=false");
    box.took(copies_words(*copies), to);
  }
  to.shard = box.take_count({"dp_shard_size"});
  if (to.shard) box.took(fmt::format("sharded over {} ranks", *to.shard), to);
  if (box.take({"attn_implementation"}).value_or("") == "eager")
    box.set_knob("attention", "eager", to);
  static_cast<void>(box.take({"flash_attention", "sdp_attention"}));
  const bool compiles = box.take_switch({"torch_compile"}).value_or(false);
  to.stack = compiles ? "torch-compile" : "hf-eager";
  if (compiles) box.took("framework torch-compile", to);
  take_losses(box, to);
  if (!box.take_switch({"sample_packing"}).value_or(false)) {
    to.assumed.push_back(
        "without sample_packing most sequences are shorter than sequence_len: times "
        "and memory are of full ones");
  }
  for (const char* plain : {"pad_to_sequence_len",
                            "model_type",
                            "strict",
                            "trust_remote_code",
                            "chat_template",
                            "train_on_inputs",
                            "group_by_length",
                            "remove_unused_columns",
                            "eval_sample_packing",
                            "local_rank",
                            "resume_from_checkpoint",
                            "xformers_attention",
                            "is_llama_derived_model",
                            "is_mistral_derived_model",
                            "is_falcon_derived_model",
                            "processor_type",
                            "ddp",
                            "tf32",
                            "ddp_find_unused_parameters",
                            "optim_target_modules"}) {
    static_cast<void>(box.take({plain}));
  }
  for (const char* list : {"special_tokens", "tokens", "eot_tokens", "gptq_groupsize",
                           "gptq_model_v1", "torchdistx_path"}) {
    box.take_section(list);
  }
}

}  // namespace shardwright::cli
