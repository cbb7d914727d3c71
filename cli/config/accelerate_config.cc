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
  if (!box.has("mixed_precision"))
    to.assumed.push_back("mixed_precision is up to the script: taken as bf16 (--param-dtype)");
  const bool half = mixed == "BF16" || mixed == "FP16";
  if (!half && mixed != "NO" && mixed != "FALSE") box.fail("no, fp16, bf16 or fp8");
  box.set_knob("param-dtype", half ? "bf16" : "fp32", to);
  box.set_knob("reduce-dtype", half ? "bf16" : "fp32", to);
  if (mixed == "FP16") box.set_knob("precision", "fp16", to);
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
  const std::string behind = upper(take("backward_prefetch").value_or("BACKWARD_PRE"));
  if (!two && behind != "BACKWARD_PRE" && behind != "1")
    to.not_taken.push_back({"fsdp_config.fsdp_backward_prefetch", behind,
                            "predicted as BACKWARD_PRE: gathers run ahead of backward"});
  for (const char* plain : {"auto_wrap_policy", "transformer_layer_cls_to_wrap", "use_orig_params",
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
  // Ulysses (ALST): ranks of a sequence exchange heads all to all.
  if (const auto ranks = size("sp"); ranks.value_or(1) > 1) {
    box.set_knob("cp", fmt::format("{}", *ranks), to);
    box.set_knob("cp-comm", "a2a", to);
  }
  for (const char* plain : {"sp_backend", "sp_seq_length", "sp_seq_length_is_variable",
                            "sp_attn_implementation", "cp_backend"}) {
    static_cast<void>(box.take({fmt::format("parallelism_config.parallelism_config_{}", plain),
                                fmt::format("parallelism_config.{}", plain)}));
  }
  if (to.replicate > 1 && to.strategy == Strategy::kFsdp2) {
    to.strategy = Strategy::kHsdp;
    to.overrides.emplace_back("stack.hsdp_on_fsdp1=false");
  }
}

/// "auto" is what Transformers' Trainer fills in from its own arguments, whose default today is
/// bf16; without a section DeepSpeed trains in fp32.
void take_types(SettingBox& box, ImportedConfig& to) {
  bool half = false;
  for (const char* type : {"bf16", "bfloat16"}) {
    const std::string key = fmt::format("{}.enabled", type);
    if (box.is_auto(key) && !half) {
      half = true;
      to.assumed.push_back(
          fmt::format("{} is auto: up to the trainer, taken as bf16 (--param-dtype)", key));
    }
    if (box.take_switch({key}).value_or(false)) {
      half = true;
      box.took("param_dtype bf16", to);
    }
  }
  bool fp16 = box.take_switch({"fp16.enabled"}).value_or(false);
  if (fp16) box.set_knob("precision", "fp16", to);
  if (box.is_auto("fp16.enabled") && !half) {
    half = true;
    to.assumed.push_back(
        "fp16.enabled is auto: up to the trainer, taken as bf16 (--param-dtype, --precision fp16)");
  }
  if (!half && !fp16) {
    to.assumed.push_back(
        "neither bf16 nor fp16 is enabled: fp32, DeepSpeed's default (--param-dtype)");
  }
  for (const char* plain : {"auto_cast", "loss_scale", "initial_scale_power", "loss_scale_window",
                            "hysteresis", "consecutive_hysteresis", "min_loss_scale"}) {
    static_cast<void>(box.take({fmt::format("fp16.{}", plain)}));
    static_cast<void>(box.take({fmt::format("bf16.{}", plain)}));
  }
  box.leave({"fp16.fp16_master_weights_and_grads"}, "master weights are predicted in fp32", to);
  to.knobs.param_dtype = half || fp16 ? DType::kBf16 : DType::kFp32;
  to.knobs.reduce_dtype = to.knobs.param_dtype;
}

void take_optimizer_device(SettingBox& box, std::string_view key, ImportedConfig& to) {
  const auto device = box.take({key});
  if (!device || *device == "none") return;
  if (*device != "cpu" && *device != "nvme") box.fail("none, cpu or nvme");
  box.set_knob("offload", "optimizer", to);
  if (*device == "nvme")
    to.not_taken.push_back({box.key(), *device, "predicted as the host's memory"});
}

/// What zero_optimization says beside its stage: what the host's memory holds, and sizes of
/// buckets, which are not modelled.
void take_zero_options(SettingBox& box, ImportedConfig& to) {
  take_optimizer_device(box, "zero_optimization.offload_optimizer.device", to);
  if (box.take_switch({"zero_optimization.cpu_offload"}).value_or(false))
    box.set_knob("offload", "optimizer", to);
  box.leave({"zero_optimization.cpu_offload_params"}, "parameters stay on the GPU here", to);
  box.leave({"zero_optimization.offload_param.device"}, "parameters stay on the GPU here", to);
  box.leave({"zero_optimization.zero_hpz_partition_size"}, "hpZ is not predicted from a file", to);
  box.leave({"zero_optimization.mics_shard_size"}, "DeepSpeed no longer shards in groups", to);
  for (const char* bucket : {"stage3_prefetch_bucket_size",
                             "stage3_max_live_parameters",
                             "stage3_max_reuse_distance",
                             "stage3_param_persistence_threshold",
                             "reduce_bucket_size",
                             "allgather_bucket_size",
                             "allgather_partitions",
                             "contiguous_gradients",
                             "reduce_scatter",
                             "sub_group_size",
                             "round_robin_gradients",
                             "offload_optimizer.pin_memory",
                             "offload_optimizer.buffer_count",
                             "offload_optimizer.fast_init",
                             "offload_optimizer.pipeline_read",
                             "offload_optimizer.pipeline_write",
                             "offload_optimizer.ratio",
                             "offload_optimizer.nvme_path",
                             "offload_param.pin_memory",
                             "offload_param.buffer_count",
                             "offload_param.buffer_size",
                             "offload_param.max_in_cpu",
                             "offload_param.nvme_path",
                             "stage3_gather_fp16_weights_on_model_save",
                             "ignore_unused_parameters",
                             "load_from_fp32_weights",
                             "elastic_checkpoint",
                             "use_multi_rank_bucket_allreduce",
                             "allgather_partitions",
                             "stage3_gather_16bit_weights_on_model_save"}) {
    static_cast<void>(box.take({fmt::format("zero_optimization.{}", bucket)}));
  }
}

void take_deepspeed_optimizer(SettingBox& box, ImportedConfig& to) {
  if (const auto type = box.take({"optimizer.type"})) {
    const std::string name = upper(*type);
    if (name == "MUON" || name == "SGD") {
      box.set_knob("optimizer", name == "MUON" ? "muon" : "sgd", to);
    } else if (name == "ADAMW8BIT" || name == "ADAM8BIT") {
      box.set_knob("optimizer", "adamw-8bit", to);
    } else if (name != "ADAM" && name != "ADAMW" && name != "FUSEDADAM" && name != "CPUADAM") {
      to.not_taken.push_back({box.key(), *type, "predicted as AdamW"});
    }
  }
}

Strategy zero_strategy(std::int64_t stage) {
  return stage == 0   ? Strategy::kDdp
         : stage == 1 ? Strategy::kZero1
         : stage == 2 ? Strategy::kZero2
                      : Strategy::kZero3;
}

/// Two of the three sizes give the third (deepspeed/runtime/config.py).
void take_batch(SettingBox& box, ImportedConfig& to) {
  if (const auto global = box.take_count({"train_batch_size"})) {
    to.global_batch = *global;
    box.took(fmt::format("global batch {}", *global), to);
  }
  const bool accumulates = box.take_knob({"gradient_accumulation_steps"}, "grad-accum", to);
  const bool has_micro = box.take_knob({"train_micro_batch_size_per_gpu"}, "micro-batch", to);
  if (!accumulates && box.is_auto("gradient_accumulation_steps") && !to.global_batch) {
    to.assumed.push_back(
        "gradient_accumulation_steps is auto: up to the trainer, taken as 1 (--grad-accum)");
  }
  if (!has_micro && to.global_batch) {
    to.micro_batch_follows = true;
    to.assumed.push_back(
        fmt::format("the micro-batch is train_batch_size over the data-parallel ranks{}",
                    accumulates ? " and gradient_accumulation_steps" : ""));
  } else if (!has_micro) {
    to.assumed.push_back(fmt::format(
        "train_micro_batch_size_per_gpu is {}: up to the script, taken as 1 (--micro-batch)",
        box.is_auto("train_micro_batch_size_per_gpu") ? "auto" : "not said"));
  } else if (accumulates && to.global_batch) {
    const std::int64_t at_once = *to.knobs.micro_batch * *to.knobs.grad_accum;
    if (*to.global_batch % at_once != 0) {
      static_cast<void>(box.take({"train_batch_size"}));
      box.fail(fmt::format("a multiple of the {} sequences that a rank takes in a step", at_once));
    }
    const std::int64_t ranks = *to.global_batch / at_once;
    to.assumed.push_back(
        fmt::format("its three batch sizes are of {} data-parallel ranks; on others the global "
                    "batch is kept",
                    ranks));
    if (!box.has("tensor_parallel")) to.gpus = ranks;
  }
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
  if (!to.gpus && type == "NO") {
    to.gpus = 1;
    to.assumed.push_back("distributed_type is NO: 1 GPU");
  }
  static_cast<void>(box.take({"num_machines"}));
  take_precision(box, to);
  to.stack = "hf-eager";
  if (type == "FSDP") {
    take_fsdp(box, to);
  } else if (type == "DEEPSPEED") {
    if (box.take({"deepspeed_config.deepspeed_config_file"}))
      box.fail("the settings themselves, or import-config of that file");
    to.strategy = zero_strategy(box.take_count({"deepspeed_config.zero_stage"}, 0).value_or(2));
    box.took(fmt::format("strategy {}", name_of(to.strategy)), to);
    take_optimizer_device(box, "deepspeed_config.offload_optimizer_device", to);
    box.leave({"deepspeed_config.offload_param_device"}, "parameters stay on the GPU here", to);
  } else {
    to.strategy = type == "NO" ? Strategy::kSingle : Strategy::kDdp;
    box.took(fmt::format("strategy {}", name_of(to.strategy)), to);
  }
  take_mesh(box, to);
  if (const auto backend = box.take({"dynamo_config.dynamo_backend"});
      backend && upper(*backend) != "NO") {
    to.stack = "torch-compile";
    box.took("framework torch-compile", to);
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
  take_batch(box, to);
  take_types(box, to);
  if (const auto word = box.take({"communication_data_type"}))
    box.set_knob("reduce-dtype", *word == "bfp16" || *word == "bfloat16" ? "bf16" : *word, to);
  if (box.take_switch({"bf16.bf16_optimizer_states"}).value_or(false))
    box.set_knob("moment-dtype", "bf16", to);
  if (box.take_switch({"bf16.bf16_master_weights_and_grads"}).value_or(false))
    box.set_knob("master-dtype", "bf16", to);
  take_zero_options(box, to);
  static_cast<void>(box.take({"zero_allow_untested_optimizer"}));
  if (const auto word = box.take({"data_types.grad_accum_dtype"});
      word && word->starts_with("bf") != (to.knobs.reduce_dtype == DType::kBf16))
    to.not_taken.push_back({box.key(), *word, "gradients are added up as they are reduced"});
  const auto beside = box.take_switch({"zero_optimization.overlap_comm"});
  if ((to.strategy == Strategy::kZero1 || to.strategy == Strategy::kZero2) &&
      !beside.value_or(false)) {
    to.assumed.push_back(
        "gradients are reduced while backward runs in the prediction, though overlap_comm is off");
  }
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
  take_deepspeed_optimizer(box, to);
  for (const char* plain :
       {"prescale_gradients", "gradient_predivide_factor", "sparse_gradients", "steps_per_print",
        "wall_clock_breakdown", "dump_state", "memory_breakdown", "gradient_clipping",
        "zero_force_ds_cpu_optimizer", "communication_data_type"}) {
    static_cast<void>(box.take({plain}));
  }
  to.assumed.push_back("the sequence length is up to the script (--seq-len)");
}

}  // namespace shardwright::cli
