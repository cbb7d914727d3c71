// SPDX-License-Identifier: Apache-2.0
// axolotl's YAML. Option names and defaults from its axolotl/utils/schemas (0.19); DeepSpeed's
// files are those that ship with it in deepspeed_configs.
#include <fmt/core.h>

#include "cli/trainers/fine_tuning.h"
#include "cli/trainers/rows.h"
#include "sim/core/base/words.h"

namespace shardwright::cli {
namespace {

void take_axolotl_sharding(SettingBox& box, ImportedConfig& to) {
  to.strategy = Strategy::kDdp;
  if (take_deepspeed_file(box, to)) return;
  const bool empty = box.peek("fsdp_config").has_value();  // a key with nothing below it
  if ((!box.has("fsdp_config") || empty) && !box.has("fsdp_version") && !box.has("fsdp[0]")) return;
  std::string words;
  for (const std::string& word : box.take_list("fsdp")) words += lower_case(word) + " ";
  const bool two = box.take("fsdp_version fsdp_config.fsdp_version").value_or("1") == "2";
  const auto reshards =
      box.take_switch("fsdp_config.reshard_after_forward fsdp_config.fsdp_reshard_after_forward");
  const auto strategy =
      box.take("fsdp_config.sharding_strategy fsdp_config.fsdp_sharding_strategy");
  take_fsdp_words(box, lower_case(strategy.value_or(words)), two, reshards, to);
  if (box.is_on("fsdp_config.activation_checkpointing fsdp_config.fsdp_activation_checkpointing"))
    box.set_knob("ckpt-layers", "all", to);
  box.leave("fsdp_config.offload_params fsdp_config.fsdp_offload_params", kMovesParameters, to);
  if (words.find("offload") != words.npos)
    to.not_taken.push_back({"fsdp", "offload", std::string(kMovesParameters)});
  for (const char* section : {"fsdp_config.fsdp_", "fsdp_config."}) {
    box.pass(
        "auto_wrap_policy transformer_layer_cls_to_wrap state_dict_type use_orig_params "
        "cpu_ram_efficient_loading final_state_dict_type sync_module_states limit_all_gathers",
        section);
  }
}

void take_axolotl_checkpointing(SettingBox& box, ImportedConfig& to) {
  const auto text = box.take("gradient_checkpointing");
  if (!text) return;
  const std::string word = lower_case(*text);
  // unsloth: an older word for offload
  const bool offloads = word.starts_with("offload") || word == "unsloth";
  if (word == "true" || offloads) box.set_knob("ckpt-layers", "all", to);
  if (offloads) to.not_taken.push_back({box.key(), *text, std::string(kStaysOnGpu)});
  if (word != "true" && word != "false" && !offloads) box.fail("true, false or offload");
}

void take_axolotl_adapter(SettingBox& box, ImportedConfig& to) {
  const auto adapter = box.take("adapter");
  const std::string word = lower_case(adapter.value_or(""));
  if (word == "lora" || word == "qlora") {
    box.took("adapters of low rank", to);
    if (!box.take_knob("lora_r", "lora", to)) to.knobs.parallel.lora = 8;
  } else if (adapter) {
    box.fail("lora, qlora or none");
  }
  const bool four = box.take_switch("load_in_4bit").value_or(word == "qlora");
  const bool eight = box.is_on("load_in_8bit");
  if (to.knobs.parallel.lora && (four || eight)) {
    to.knobs.parallel.quantize = four ? Quantize::kNf4 : Quantize::kInt8;
    to.taken.push_back({four ? "load_in_4bit" : "load_in_8bit", "true",
                        fmt::format("frozen weights in {}", name_of(*to.knobs.parallel.quantize))});
  }
  const std::size_t modules = box.take_section("lora_target_modules");
  const bool linear = box.is_on("lora_target_linear");
  if (to.knobs.parallel.lora && modules > 0 && !linear) to.assumed.push_back(kAllHaveAdapters);
  if (box.take_section("lora_modules_to_save") > 0 && to.knobs.parallel.lora)
    to.not_taken.push_back({"lora_modules_to_save", "a list", std::string(kTrainedWhole)});
}

void take_axolotl_types(SettingBox& box, ImportedConfig& to) {
  if (box.is_auto("bf16"))
    to.assumed.push_back("bf16 is auto: up to the machine, taken as bf16 (--param-dtype)");
  const std::string bf16 = lower_case(box.take("bf16 bfloat16").value_or("auto"));
  const std::string fp16 = lower_case(box.take("fp16 float16").value_or("false"));
  if (bf16 == "false" && fp16 == "true") {
    box.set_knob("precision", "fp16", to);
  } else if (bf16 == "false") {
    to.knobs.param_dtype = DType::kFp32;
  }
  if (bf16 != "false" || fp16 == "true") to.knobs.reduce_dtype = DType::kBf16;
}

void take_axolotl_tf32(SettingBox& box, ImportedConfig& to) {
  if (to.knobs.param_dtype == DType::kFp32)
    box.leave("tf32", "fp32 products are not predicted in tf32", to);
}

void take_axolotl_shard(SettingBox& box, ImportedConfig& to) {
  to.shard = box.take_count("dp_shard_size");
  if (to.shard) box.took(fmt::format("sharded over {} ranks", *to.shard), to);
}

void take_axolotl_attention(SettingBox& box, ImportedConfig& to) {
  if (box.take("attn_implementation").value_or("") == "eager")
    box.set_knob("attention", "eager", to);
}

void take_axolotl_compiler(SettingBox& box, ImportedConfig& to) {
  const bool compiles = box.is_on("torch_compile");
  to.stack = compiles ? "torch-compile" : "hf-eager";
  if (compiles) box.took("framework torch-compile", to);
}

/// Losses that never hold all logits: cut cross entropy by its plugin alone.
void take_axolotl_plugins(SettingBox& box, ImportedConfig& to) {
  const bool cut = box.take_switch("cut_cross_entropy").value_or(true);
  for (int i = 0;; ++i) {
    const auto plugin = box.take({fmt::format("plugins[{}]", i)});
    if (!plugin) break;
    if (plugin->ends_with("CutCrossEntropyPlugin") && cut)
      box.set_knob("loss-chunks", std::string(kFusedLoss), to);
    if (plugin->ends_with("KDPlugin") || plugin->ends_with("DiffusionPlugin"))
      box.fail("no such plugin, because its steps are not predicted");
  }
}

void take_axolotl_pieces(SettingBox& box, ImportedConfig& to) {
  const std::int64_t pieces = box.take_count("chunked_cross_entropy_num_chunks").value_or(8);
  if (box.is_on("chunked_cross_entropy"))
    box.set_knob("loss-chunks", fmt::format("{}", pieces), to);
}

constexpr Row kAxolotl[] = {
    Row::refused("rl", "no such key, because steps of preference training are not predicted"),
    Row::refused("unfrozen_parameters[0]",
                 "no such list, because partly frozen models are not predicted"),
    Row::refused("reward_model process_reward_model num_labels",
                 "no such key, because heads for other tasks are not predicted"),
    Row::model("base_model").at(1, Write::model),
    Row::of_knob("sequence_len", "seq-len", "512", "axolotl's default").at(2),
    Row::of_knob("micro_batch_size", "micro-batch", "1", "axolotl's default").at(5),
    Row::of_knob("gradient_accumulation_steps", "grad-accum").at(6),
    Row::left("batch_size", "axolotl accumulates gradient_accumulation_steps, 1 unless said"),
    Row::code(take_axolotl_sharding),
    Row::written("deepspeed")
        .at(
            19,
            [](const Told& t) {
              return YamlSource::format("deepspeed_configs/zero{}.json",
                                        info_of(t.run.strategy).zero_stage());
            },
            When::zero),
    Row::written("fsdp_version").at(20, "1", When::fsdp1),
    Row::written("fsdp_version").at(20, "2", When::fsdp2),
    Row::written("fsdp_config.auto_wrap_policy").at(21, "TRANSFORMER_BASED_WRAP", When::fsdp),
    Row::written("fsdp_config.transformer_layer_cls_to_wrap")
        .at(22, Write::layer_class, When::fsdp),
    Row::written("fsdp_config.state_dict_type").at(23, "SHARDED_STATE_DICT", When::fsdp),
    Row::written("fsdp_config.offload_params").at(24, "false", When::fsdp),
    Row::written("fsdp_config.reshard_after_forward").at(25, Write::reshards, When::fsdp2),
    Row::written("fsdp_config.sharding_strategy")
        .at(
            26,
            [](const Told& t) {
              return YamlSource(When::reshards(t) ? "FULL_SHARD" : "SHARD_GRAD_OP");
            },
            When::fsdp1),
    Row::code(take_axolotl_checkpointing, "gradient_checkpointing").on(7, When::checkpoints),
    Row::free("gradient_checkpointing_kwargs.use_reentrant"),
    Row::left("activation_offloading", kStaysOnGpu),
    Row::code(take_axolotl_adapter),
    Row::written("adapter").at(
        11, [](const Told& t) { return YamlSource(When::nf4(t) ? "qlora" : "lora"); },
        When::adapters),
    Row::written("load_in_4bit").at(12, "true", When::nf4),
    Row::written("load_in_8bit").at(13, "true", When::int8),
    Row::written("lora_r").at(14, Write::adapter_rank, When::adapters),
    Row::free("lora_alpha").at(15, Write::adapter_alpha, When::adapters),
    Row::written("lora_target_linear").at(16, "true", When::adapters),
    Row::free("lora_r lora_dropout lora_mlp_kernel lora_qkv_kernel lora_o_kernel "
              "lora_fan_in_fan_out lora_model_dir peft_use_rslora"),
    Row::optimizer("optimizer").at(10, "adamw_bnb_8bit", When::adamw_8bit, "adamw_torch_fused"),
    Row::code(take_axolotl_types, "bf16").on(8, When::bf16),
    Row::sets("fp8", "precision", "fp8"),
    Row::code(take_axolotl_tf32),
    Row::degree("tensor_parallel_size", "tp"),
    Row::degree("context_parallel_size", "cp"),
    Row::degree("sequence_parallel_degree", "cp"),
    Row::degree("expert_parallel_size", "ep"),
    Row::copies("dp_replicate_size").at(17, Write::replicas, When::hybrid),
    Row::code(take_axolotl_shard, "dp_shard_size").at(18, Write::ranks_of_replica, When::hybrid),
    Row::code(take_axolotl_attention, "attn_implementation")
        .at(9, "flash_attention_2", When::flash, "eager"),
    Row::free("flash_attention sdp_attention"),
    Row::code(take_axolotl_compiler),
    Row::code(take_axolotl_plugins),
    Row::sets("liger_fused_linear_cross_entropy", "loss-chunks", kFusedLoss),
    Row::code(take_axolotl_pieces),
    Row::packing("sample_packing", "sequence_len").at(3, "true"),
    Row::free("pad_to_sequence_len").at(4, "true"),
    Row::free("model_type strict trust_remote_code chat_template train_on_inputs group_by_length "
              "remove_unused_columns eval_sample_packing local_rank resume_from_checkpoint "
              "xformers_attention is_llama_derived_model is_mistral_derived_model "
              "is_falcon_derived_model processor_type ddp tf32 ddp_find_unused_parameters "
              "optim_target_modules"),
    Row::sections("special_tokens tokens eot_tokens gptq_groupsize gptq_model_v1 torchdistx_path"),
};

}  // namespace

bool is_axolotl(const SettingBox& box) {
  return box.has("base_model");
}

void read_axolotl(SettingBox& box, ImportedConfig& to) {
  read_rows(kAxolotl, box, to);
}

TrainerSettings axolotl_settings(const sim::Job& inputs, const Plan& plan) {
  TrainerSettings settings;
  const Told told = follow_on_trainer(inputs, plan, "axolotl", settings);
  Plan& run = settings.as_run;
  if (plan.numerics.quantize == Quantize::kFp8) {
    settings.lost("quantize",
                  "fp8; axolotl quantizes frozen weights to 4 or 8 bits of integers, so int8");
    run.numerics.quantize = Quantize::kInt8;
  }
  if (plan.param_dtype == DType::kBf16 &&
      (plan.master_dtype != DType::kFp32 || plan.moment_dtype != DType::kFp32)) {
    settings.lost("moment_dtype",
                  "master weights and moments follow the model's and are predicted as fp32");
    run.master_dtype = run.moment_dtype = DType::kFp32;
  }
  if (When::hybrid(told)) settings.overrides.emplace_back("stack.hsdp_on_fsdp1=false");
  settings.body = yaml_of(kAxolotl, told);
  return settings;
}

}  // namespace shardwright::cli
