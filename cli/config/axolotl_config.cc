// SPDX-License-Identifier: Apache-2.0
// axolotl's YAML. Option names and defaults from its axolotl/utils/schemas (0.19).
#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "cli/config/imported.h"

namespace shardwright::cli {
namespace {

std::string small(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

void take_optimizer(SettingBox& box, ImportedConfig& to) {
  const auto name = box.take({"optimizer"});
  if (!name) return;
  const std::string word = small(*name);
  if (word.find("8bit") != word.npos && word.find("adam") != word.npos) {
    box.set_knob("optimizer", "adamw-8bit", to);
  } else if (word == "muon" || word == "sgd") {
    box.set_knob("optimizer", word, to);
  } else if (word.starts_with("adamw")) {
    box.set_knob("optimizer", "adamw", to);
  } else {
    to.not_taken.push_back({box.key(), *name, "predicted as AdamW"});
  }
}

void take_sharding(SettingBox& box, ImportedConfig& to) {
  const auto deepspeed = box.take({"deepspeed"});
  to.strategy = Strategy::kDdp;
  if (deepspeed) {
    const std::string word = small(*deepspeed);
    for (const auto& [part, strategy] : {std::pair{"zero1", Strategy::kZero1},
                                         {"zero2", Strategy::kZero2},
                                         {"zero3", Strategy::kZero3}}) {
      if (word.find(part) != word.npos) to.strategy = strategy;
    }
    if (to.strategy == Strategy::kDdp) {
      to.not_taken.push_back({box.key(), *deepspeed, "import that file itself"});
    } else {
      box.took(fmt::format("strategy {}, by the file's name", name_of(to.strategy)), to);
    }
    return;
  }
  if (!box.has("fsdp_config") && !box.has("fsdp_version") && !box.has("fsdp[0]")) return;
  static_cast<void>(box.take({"fsdp[0]"}));
  static_cast<void>(box.take({"fsdp[1]"}));
  const bool two = box.take({"fsdp_version", "fsdp_config.fsdp_version"}).value_or("1") == "2";
  const auto reshard = box.take_switch(
      {"fsdp_config.reshard_after_forward", "fsdp_config.fsdp_reshard_after_forward"});
  const std::string sharding =
      small(box.take({"fsdp_config.sharding_strategy", "fsdp_config.fsdp_sharding_strategy"})
                .value_or(""));
  const bool never = !reshard.value_or(sharding != "shard_grad_op");
  to.strategy = two ? (never ? Strategy::kFsdp2NoReshard : Strategy::kFsdp2)
                    : (never ? Strategy::kFsdp1GradOp : Strategy::kFsdp1);
  if (sharding.starts_with("hybrid")) to.strategy = Strategy::kHsdp;
  box.took(fmt::format("strategy {}", name_of(to.strategy)), to);
  if (box.take_switch(
             {"fsdp_config.activation_checkpointing", "fsdp_config.fsdp_activation_checkpointing"})
          .value_or(false))
    box.set_knob("ckpt-layers", "all", to);
  box.leave({"fsdp_config.offload_params", "fsdp_config.fsdp_offload_params"},
            "it moves parameters and gradients to the host", to);
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
  if (adapter && small(*adapter) == "lora") {
    box.took("adapters of low rank", to);
    if (!box.take_knob({"lora_r"}, "lora", to)) to.knobs.parallel.lora = 8;
  } else if (adapter) {
    to.not_taken.push_back({box.key(), *adapter, "quantized weights are not predicted"});
  }
  static_cast<void>(box.take({"lora_r"}));
  static_cast<void>(box.take({"lora_alpha"}));
  static_cast<void>(box.take({"lora_dropout"}));
  box.leave({"lora_target_linear"}, "all projections have adapters in the prediction", to);
  box.leave({"load_in_4bit"}, "quantized weights are not predicted", to);
  box.leave({"load_in_8bit"}, "quantized weights are not predicted", to);
}

}  // namespace

bool is_axolotl(const SettingBox& box) {
  return box.has("base_model");
}

void read_axolotl(SettingBox& box, ImportedConfig& to) {
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
  take_sharding(box, to);
  if (const auto word = box.take({"gradient_checkpointing"})) {
    if (small(*word) == "true") box.set_knob("ckpt-layers", "all", to);
    if (small(*word).starts_with("offload")) {
      box.set_knob("ckpt-layers", "all", to);
      to.not_taken.push_back({box.key(), *word, "what is kept stays on the GPU here"});
    }
  }
  static_cast<void>(box.take({"gradient_checkpointing_kwargs.use_reentrant"}));
  take_adapter(box, to);
  take_optimizer(box, to);
  const bool half = small(box.take({"bf16"}).value_or("auto")) != "false";
  if (!half && small(box.take({"fp16"}).value_or("false")) != "true") {
    to.knobs.param_dtype = DType::kFp32;
  } else {
    to.knobs.reduce_dtype = DType::kBf16;
  }
  box.leave({"tf32"}, "fp32 products are not predicted in tf32", to);
  for (const auto& [key, knob] : {std::pair{"tensor_parallel_size", "tp"},
                                  {"context_parallel_size", "cp"},
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
  if (compiles) box.took("stack torch-compile", to);
  box.leave({"liger_fused_linear_cross_entropy"}, "give --loss-chunks for a loss in pieces", to);
  box.leave({"cut_cross_entropy"}, "give --loss-chunks for a loss in pieces", to);
  if (!box.take_switch({"sample_packing"}).value_or(false)) {
    to.assumed.push_back(
        "without sample_packing most sequences are shorter than sequence_len: times "
        "and memory are of full ones");
  }
  static_cast<void>(box.take({"pad_to_sequence_len"}));
}

}  // namespace shardwright::cli
