// SPDX-License-Identifier: Apache-2.0
// Accelerate's config file and the settings of DeepSpeed, which it can hold. Option names from
// accelerate/utils/dataclasses.py (FullyShardedDataParallelPlugin, ParallelismConfig), from
// deepspeed/runtime/zero/config.py and www.deepspeed.ai/docs/config-json.
#include <fmt/core.h>

#include <algorithm>
#include <cctype>

#include "cli/config/imported.h"

namespace shardwright::cli {
namespace {

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

void take_precision(SettingBox& box, ImportedConfig& to) {
  const auto word = box.take({"mixed_precision"});
  // 'no' is quoted where it is not false.
  const std::string mixed = upper(word.value_or(box.has("mixed_precision") ? "NO" : "BF16"));
  if (mixed == "FP8") {
    box.set_knob("precision", "fp8", to);
    return;
  }
  const bool half = mixed == "BF16" || mixed == "FP16";
  box.set_knob("param-dtype", half ? "bf16" : "fp32", to);
  box.set_knob("reduce-dtype", half ? "bf16" : "fp32", to);
  if (mixed == "FP16") to.not_taken.push_back({box.key(), *word, "predicted as bf16"});
}

/// Without its prefix as well, as newer files have it.
struct FsdpKey {
  explicit FsdpKey(std::string_view name)
      : with(fmt::format("fsdp_config.fsdp_{}", name)),
        without(fmt::format("fsdp_config.{}", name)) {}
  std::string with, without;
};

void take_fsdp(SettingBox& box, ImportedConfig& to) {
  const auto take = [&](const char* name) {
    const FsdpKey key(name);
    return box.take({key.with, key.without});
  };
  const auto version = take("version");
  const bool two = version.value_or("1") == "2";
  if (version) box.took(fmt::format("FSDP{}", two ? 2 : 1), to);
  const auto reshard = take("reshard_after_forward");
  std::string sharding = upper(take("sharding_strategy").value_or("FULL_SHARD"));
  // FSDP1's words were accepted under the new key, too.
  if (reshard && (upper(*reshard).find("SHARD") != std::string::npos)) sharding = upper(*reshard);
  const bool never = reshard ? upper(*reshard) == "FALSE" || sharding == "SHARD_GRAD_OP"
                             : sharding == "SHARD_GRAD_OP" || sharding == "2";
  const bool hybrid = sharding.starts_with("HYBRID") || sharding == "4" || sharding == "5";
  if (sharding == "NO_SHARD" || sharding == "3") {
    to.strategy = Strategy::kDdp;
  } else if (hybrid) {
    to.strategy = Strategy::kHsdp;
    if (sharding == "HYBRID_SHARD_ZERO2" || sharding == "5") {
      to.not_taken.push_back({"fsdp_config.fsdp_sharding_strategy", sharding,
                              "hsdp is predicted with resharding after forward"});
    }
  } else if (two) {
    to.strategy = never ? Strategy::kFsdp2NoReshard : Strategy::kFsdp2;
  } else {
    to.strategy = never ? Strategy::kFsdp1GradOp : Strategy::kFsdp1;
  }
  box.took(fmt::format("strategy {}", name_of(to.strategy)), to);
  const FsdpKey checkpointing("activation_checkpointing"), ahead("forward_prefetch"),
      offload("offload_params");
  if (const auto on = box.take_switch({checkpointing.with, checkpointing.without});
      on.value_or(false))
    box.set_knob("ckpt-layers", "all", to);
  if (const auto on = box.take_switch({ahead.with, ahead.without}); !two) {
    to.overrides.push_back(fmt::format("stack.fsdp1_forward_prefetch={}", on.value_or(false)));
    if (!on.value_or(false)) to.knobs.prefetch = 0;
  }
  box.leave({offload.with, offload.without}, "it moves parameters and gradients to the host", to);
  for (const char* plain :
       {"auto_wrap_policy", "transformer_layer_cls_to_wrap", "backward_prefetch", "use_orig_params",
        "sync_module_states", "cpu_ram_efficient_loading", "state_dict_type"}) {
    static_cast<void>(take(plain));
  }
  to.overrides.emplace_back("stack.wraps_embedding_and_head=false");
}

void take_mesh(SettingBox& box, ImportedConfig& to) {
  const auto size = [&](const char* name) {
    return box.take_count({fmt::format("parallelism_config.parallelism_config_{}_size", name),
                           fmt::format("parallelism_config.{}_size", name)});
  };
  if (const auto copies = size("dp_replicate")) {
    to.replicate = *copies;
    box.took(copies_words(*copies), to);
  }
  if (const auto ranks = size("dp_shard")) {
    to.shard = *ranks;
    box.took(fmt::format("sharded over {} ranks", *ranks), to);
  }
  if (const auto ranks = size("tp"); ranks.value_or(1) > 1)
    box.set_knob("tp", fmt::format("{}", *ranks), to);
  if (const auto ranks = size("cp"); ranks.value_or(1) > 1)
    box.set_knob("cp", fmt::format("{}", *ranks), to);
  if (to.replicate > 1 && to.strategy == Strategy::kFsdp2) {
    to.strategy = Strategy::kHsdp;
    to.overrides.emplace_back("stack.hsdp_on_fsdp1=false");
  }
}

Strategy zero_strategy(std::int64_t stage) {
  return stage == 0   ? Strategy::kDdp
         : stage == 1 ? Strategy::kZero1
         : stage == 2 ? Strategy::kZero2
                      : Strategy::kZero3;
}

void assume_script(SettingBox& box, ImportedConfig& to) {
  if (!box.take_knob(
          {"gradient_accumulation_steps", "deepspeed_config.gradient_accumulation_steps"},
          "grad-accum", to)) {
    to.assumed.push_back("gradient accumulation is up to the script: taken as 1 (--grad-accum)");
  }
}

}  // namespace

bool is_accelerate(const SettingBox& box) {
  return box.has("distributed_type") || box.has("compute_environment") || box.has("fsdp_config");
}

void read_accelerate(SettingBox& box, ImportedConfig& to) {
  const std::string type = upper(box.take({"distributed_type"}).value_or("NO"));
  to.gpus = box.take_count({"num_processes"});
  if (to.gpus) box.took(fmt::format("{} GPUs", *to.gpus), to);
  static_cast<void>(box.take({"num_machines"}));
  take_precision(box, to);
  to.stack = "hf-eager";
  if (type == "FSDP") {
    take_fsdp(box, to);
  } else if (type == "DEEPSPEED") {
    to.strategy = zero_strategy(box.take_count({"deepspeed_config.zero_stage"}, 0).value_or(2));
    box.took(fmt::format("strategy {}", name_of(to.strategy)), to);
    if (box.take({"deepspeed_config.offload_optimizer_device"}).value_or("none") == "cpu")
      box.set_knob("offload", "optimizer", to);
    box.leave({"deepspeed_config.offload_param_device"}, "parameters stay on the GPU here", to);
    box.leave({"deepspeed_config.deepspeed_config_file"},
              "a file of its own: import that one instead", to);
  } else {
    to.strategy = type == "NO" ? Strategy::kSingle : Strategy::kDdp;
    box.took(fmt::format("strategy {}", name_of(to.strategy)), to);
  }
  take_mesh(box, to);
  if (const auto backend = box.take({"dynamo_config.dynamo_backend"});
      backend && upper(*backend) != "NO") {
    to.stack = "torch-compile";
    box.took("stack torch-compile", to);
  }
  assume_script(box, to);
  to.assumed.push_back(
      "micro-batch and sequence length are up to the script (--micro-batch, --seq-len)");
}

bool is_deepspeed(const SettingBox& box) {
  return box.has("zero_optimization") || box.has("train_micro_batch_size_per_gpu") ||
         box.has("train_batch_size");
}

void read_deepspeed(SettingBox& box, ImportedConfig& to) {
  to.stack = "hf-eager";
  to.strategy = zero_strategy(box.take_count({"zero_optimization.stage"}, 0).value_or(0));
  box.took(fmt::format("strategy {}", name_of(to.strategy)), to);
  if (!box.take_knob({"train_micro_batch_size_per_gpu"}, "micro-batch", to))
    to.assumed.push_back(
        "train_micro_batch_size_per_gpu is auto: up to the script (--micro-batch)");
  if (const auto global = box.take_count({"train_batch_size"})) {
    to.global_batch = *global;
    box.took(fmt::format("global batch {}", *global), to);
  }
  if (box.take_knob({"gradient_accumulation_steps"}, "grad-accum", to)) to.global_batch.reset();
  const bool half = box.take_switch({"bf16.enabled"}).value_or(false);
  if (half) box.took("param_dtype bf16", to);
  const bool fp16 = box.take_switch({"fp16.enabled"}).value_or(false);
  if (fp16) box.set_knob("precision", "fp16", to);
  to.knobs.param_dtype = half || fp16 ? DType::kBf16 : DType::kFp32;
  to.knobs.reduce_dtype = to.knobs.param_dtype;
  if (const auto word = box.take({"communication_data_type"}))
    box.set_knob("reduce-dtype", *word == "bfp16" || *word == "bfloat16" ? "bf16" : *word, to);
  if (box.take_switch({"bf16.bf16_optimizer_states"}).value_or(false))
    box.set_knob("moment-dtype", "bf16", to);
  if (box.take_switch({"bf16.bf16_master_weights_and_grads"}).value_or(false))
    box.set_knob("master-dtype", "bf16", to);
  if (box.take({"zero_optimization.offload_optimizer.device"}).value_or("none") == "cpu")
    box.set_knob("offload", "optimizer", to);
  box.leave({"zero_optimization.offload_param.device"}, "parameters stay on the GPU here", to);
  box.leave({"zero_optimization.zero_hpz_partition_size"}, "hpZ is not predicted from a file", to);
  box.leave({"zero_optimization.mics_shard_size"}, "DeepSpeed no longer shards in groups", to);
  for (const char* bucket :
       {"stage3_prefetch_bucket_size", "stage3_max_live_parameters", "stage3_max_reuse_distance",
        "stage3_param_persistence_threshold", "reduce_bucket_size", "allgather_bucket_size",
        "allgather_partitions", "overlap_comm", "contiguous_gradients", "reduce_scatter",
        "sub_group_size", "round_robin_gradients", "offload_optimizer.pin_memory",
        "stage3_gather_16bit_weights_on_model_save"}) {
    static_cast<void>(box.take({fmt::format("zero_optimization.{}", bucket)}));
  }
  static_cast<void>(box.take({"zero_allow_untested_optimizer"}));
  static_cast<void>(box.take({"data_types.grad_accum_dtype"}));
  if (const auto count = box.take_count({"activation_checkpointing.number_checkpoints"}, 0);
      count.value_or(0) > 0) {
    box.set_knob("ckpt-layers", "all", to);
    to.assumed.push_back(
        "activation_checkpointing only says how: whether layers are checkpointed is "
        "up to the model's code, taken as all (--ckpt-layers)");
  } else {
    to.assumed.push_back(
        "whether layers are checkpointed is up to the model's code: taken as none "
        "(--ckpt-layers all)");
  }
  if (const auto ranks = box.take_count({"tensor_parallel.autotp_size"}); ranks.value_or(1) > 1)
    box.set_knob("tp", fmt::format("{}", *ranks), to);
  if (const auto type = box.take({"optimizer.type"})) {
    const std::string name = upper(*type);
    if (name == "MUON" || name == "SGD") {
      box.set_knob("optimizer", name == "MUON" ? "muon" : "sgd", to);
    } else if (name.find("ADAM") == name.npos) {
      to.not_taken.push_back({box.key(), *type, "predicted as AdamW"});
    }
  }
  to.assumed.push_back("the sequence length is up to the script (--seq-len)");
}

}  // namespace shardwright::cli
