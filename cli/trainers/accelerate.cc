// SPDX-License-Identifier: Apache-2.0
// Accelerate's config file. Option names from its guides "FSDP" and "FSDP1 vs FSDP2" and from
// accelerate/utils/dataclasses.py (FullyShardedDataParallelPlugin, ParallelismConfig); what bf16
// means for reductions from tests/fsdp/test_fsdp.py (param, reduce and buffer dtype alike).
#include <fmt/core.h>

#include <string>

#include "cli/export/settings.h"
#include "cli/trainers/fine_tuning.h"
#include "cli/trainers/rows.h"
#include "sim/core/base/words.h"

namespace shardwright::cli {
namespace {

/// "NO", "FSDP", "DEEPSPEED", "MULTI_GPU", ..
std::string accelerate_type(SettingBox& box) {
  return upper_case(box.take("distributed_type").value_or("NO"));
}

void take_accelerate_gpus(SettingBox& box, ImportedConfig& to) {
  const std::string type = accelerate_type(box);
  to.gpus = box.take_count("num_processes");
  if (to.gpus) box.took(fmt::format("{} GPUs", *to.gpus), to);
  if (to.gpus || type != "NO") return;
  to.gpus = 1;
  to.assumed.push_back("distributed_type is NO: 1 GPU");
}

void take_accelerate_types(SettingBox& box, ImportedConfig& to) {
  const auto word = box.take("mixed_precision");
  // 'no' is quoted where it is not false.
  const std::string mixed = upper_case(word.value_or(box.has("mixed_precision") ? "NO" : "BF16"));
  if (mixed == "FP8") return box.set_knob("precision", "fp8", to);
  if (!box.has("mixed_precision"))
    to.assumed.push_back("mixed_precision is up to the script: taken as bf16 (--param-dtype)");
  const bool half = mixed == "BF16" || mixed == "FP16";
  if (!half && mixed != "NO" && mixed != "FALSE") box.fail("no, fp16, bf16 or fp8");
  box.set_knob("param-dtype", half ? "bf16" : "fp32", to);
  box.set_knob("reduce-dtype", half ? "bf16" : "fp32", to);
  if (mixed == "FP16") box.set_knob("precision", "fp16", to);
}

/// Without its prefix as well, as newer files have it.
std::string fsdp_keys(std::string_view name) {
  return fmt::format("fsdp_config.fsdp_{0} fsdp_config.{0}", name);
}
std::string mesh_keys(std::string_view name) {
  return fmt::format("parallelism_config.parallelism_config_{0} parallelism_config.{0}", name);
}

void take_accelerate_fsdp(SettingBox& box, ImportedConfig& to) {
  const auto take = [&](std::string_view name) { return box.take(fsdp_keys(name)); };
  const auto version = take("version");
  const bool two = version.value_or("1") == "2";
  if (version) box.took(fmt::format("FSDP{}", two ? 2 : 1), to);
  const std::string reshard = upper_case(take("reshard_after_forward").value_or(""));
  std::string sharding = upper_case(take("sharding_strategy").value_or("FULL_SHARD"));
  // FSDP1's words were accepted under the new key, too.
  if (reshard.find("SHARD") != reshard.npos) sharding = reshard;
  const bool never =
      reshard == "FALSE" || sharding == "SHARD_GRAD_OP" || (reshard.empty() && sharding == "2");
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
  if (box.is_on(fsdp_keys("activation_checkpointing"))) box.set_knob("ckpt-layers", "all", to);
  const bool ahead = box.is_on(fsdp_keys("forward_prefetch"));
  if (!two) {
    to.overrides.push_back(fmt::format("stack.fsdp1_forward_prefetch={}", ahead));
    if (!ahead) to.knobs.prefetch = 0;
  }
  box.leave(fsdp_keys("offload_params"), "it moves parameters and gradients to the host", to);
  const std::string behind = upper_case(take("backward_prefetch").value_or("BACKWARD_PRE"));
  if (!two && behind != "BACKWARD_PRE" && behind != "1")
    to.not_taken.push_back({"fsdp_config.fsdp_backward_prefetch", behind,
                            "predicted as BACKWARD_PRE: gathers run ahead of backward"});
  for (const std::string_view plain :
       Keys("auto_wrap_policy transformer_layer_cls_to_wrap use_orig_params sync_module_states "
            "cpu_ram_efficient_loading state_dict_type"))
    static_cast<void>(take(plain));
  to.overrides.emplace_back("stack.wraps_embedding_and_head=false");
}

void take_accelerate_sharding(SettingBox& box, ImportedConfig& to) {
  const std::string type = accelerate_type(box);
  to.stack = "hf-eager";
  if (type == "FSDP") return take_accelerate_fsdp(box, to);
  if (type == "DEEPSPEED") {
    if (box.take("deepspeed_config.deepspeed_config_file"))
      box.fail("the settings themselves, or import-config of that file");
    to.strategy = zero_strategy(box.take_count("deepspeed_config.zero_stage", 0).value_or(2));
  } else {
    to.strategy = type == "NO" ? Strategy::kSingle : Strategy::kDdp;
  }
  box.took(fmt::format("strategy {}", name_of(to.strategy)), to);
  if (type != "DEEPSPEED") return;
  take_optimizer_device(box, "deepspeed_config.offload_optimizer_device", to);
  box.leave("deepspeed_config.offload_param_device", "parameters stay on the GPU here", to);
}

void take_accelerate_mesh(SettingBox& box, ImportedConfig& to) {
  const auto size = [&](const char* name) { return box.take_count(mesh_keys(name)); };
  if (const auto copies = size("dp_replicate_size")) {
    to.replicate = *copies;
    box.took(copies_words(*copies), to);
  }
  if (const auto ranks = size("dp_shard_size")) {
    to.shard = *ranks;
    box.took(fmt::format("sharded over {} ranks", *ranks), to);
  }
  // sp is Ulysses (ALST): ranks of a sequence exchange heads all to all.
  for (const auto& [name, knob] :
       {std::pair{"tp_size", "tp"}, {"cp_size", "cp"}, {"sp_size", "cp"}}) {
    const std::int64_t ranks = size(name).value_or(1);
    if (ranks > 1) box.set_knob(knob, fmt::format("{}", ranks), to);
    if (ranks > 1 && *name == 's') box.set_knob("cp-comm", "a2a", to);
  }
  for (const std::string_view plain :
       Keys("sp_backend sp_seq_length sp_seq_length_is_variable sp_attn_implementation "
            "cp_backend"))
    static_cast<void>(box.take(mesh_keys(plain)));
  if (to.replicate > 1 && to.strategy == Strategy::kFsdp2) {
    to.strategy = Strategy::kHsdp;
    to.overrides.emplace_back("stack.hsdp_on_fsdp1=false");
  }
}

void take_accelerate_script(SettingBox& box, ImportedConfig& to) {
  const auto backend = box.take("dynamo_config.dynamo_backend");
  if (backend && upper_case(*backend) != "NO") {
    to.stack = "torch-compile";
    box.took("framework torch-compile", to);
  }
  if (!box.take_knob("gradient_accumulation_steps deepspeed_config.gradient_accumulation_steps",
                     "grad-accum", to)) {
    to.assumed.push_back("gradient accumulation is up to the script: taken as 1 (--grad-accum)");
  }
  to.assumed.push_back(
      "micro-batch and sequence length are up to the script (--micro-batch, --seq-len)");
}

struct Wrapped {
  static bool nodes(const Told& t) { return t.ranks.nodes > 1; }
  static bool groups(const Told& t) { return When::fsdp2(t) && t.ranks.replicate > 1; }

  static YamlSource gpus(const Told& t) { return Write::number(t.run.gpus); }
  static YamlSource machines(const Told& t) { return Write::number(t.ranks.nodes); }
  static YamlSource prefetches(const Told& t) { return Write::on(t.plan.prefetch > 0); }
  static YamlSource word(const Told& t) {
    return When::hybrid(t) ? "HYBRID_SHARD" : When::reshards(t) ? "FULL_SHARD" : "SHARD_GRAD_OP";
  }
};

constexpr Row kAccelerate[] = {
    Row::written("compute_environment").at(1, "LOCAL_MACHINE"),
    Row::code(take_accelerate_gpus),
    Row::written("distributed_type").at(2, "FSDP", When::fsdp),
    Row::written("distributed_type").at(2, "MULTI_GPU", When::ddp),
    Row::written("distributed_type").at(2, "'NO'", When::single),
    Row::free("num_machines").at(4, Wrapped::machines),
    Row::written("num_processes").at(5, Wrapped::gpus),
    Row::code(take_accelerate_types, "mixed_precision").at(3, "bf16", When::bf16, "'no'"),
    Row::written("machine_rank").at(6, "0"),
    Row::written("main_training_function").at(7, "main"),
    Row::written("rdzv_backend").at(8, "c10d", Wrapped::nodes, "static"),
    Row::written("same_network").at(9, "true"),
    Row::written("use_cpu").at(10, "false"),
    Row::code(take_accelerate_sharding),
    Row::written("fsdp_config.fsdp_version").at(11, "1", When::fsdp1),
    Row::written("fsdp_config.fsdp_sharding_strategy").at(12, Wrapped::word, When::fsdp1),
    Row::written("fsdp_config.fsdp_backward_prefetch").at(13, "BACKWARD_PRE", When::fsdp1),
    Row::written("fsdp_config.fsdp_forward_prefetch").at(14, Wrapped::prefetches, When::fsdp1),
    Row::written("fsdp_config.fsdp_use_orig_params").at(15, "true", When::fsdp1),
    Row::written("fsdp_config.fsdp_sync_module_states").at(16, "true", When::fsdp1),
    Row::written("fsdp_config.fsdp_version").at(17, "2", When::fsdp2),
    Row::written("fsdp_config.fsdp_reshard_after_forward").at(18, Write::reshards, When::fsdp2),
    Row::written("fsdp_config.fsdp_auto_wrap_policy").at(19, "TRANSFORMER_BASED_WRAP", When::fsdp),
    Row::written("fsdp_config.fsdp_transformer_layer_cls_to_wrap")
        .at(20, Write::layer_class, When::fsdp),
    Row::written("fsdp_config.fsdp_activation_checkpointing")
        .at(21, Write::checkpoints, When::fsdp),
    Row::written("fsdp_config.fsdp_offload_params").at(22, "false", When::fsdp),
    Row::written("fsdp_config.fsdp_cpu_ram_efficient_loading").at(23, "true", When::fsdp),
    Row::written("fsdp_config.fsdp_state_dict_type").at(24, "SHARDED_STATE_DICT", When::fsdp),
    Row::code(take_accelerate_mesh),
    Row::written("parallelism_config.parallelism_config_dp_replicate_size")
        .at(25, Write::replicas, Wrapped::groups),
    Row::written("parallelism_config.parallelism_config_dp_shard_size")
        .at(26, Write::ranks_of_replica, Wrapped::groups),
    Row::code(take_accelerate_script),
};

TrainerSharding choose_wrapper(const Plan& plan, const Ranks& ranks, bool hybrid_on_fsdp1,
                               TrainerSettings& settings) {
  Plan& run = settings.as_run;
  const StrategyInfo& strategy = info_of(plan.strategy);
  if (strategy.hybrid && ranks.shard == 1) {
    run.strategy = Strategy::kDdp;
    run.shard_group = 0;
    settings.lost("shard_group", "1; without sharding there are no groups");
    settings.lost("strategy",
                  "hsdp in groups of one GPU shards nothing: Accelerate runs it as DDP");
    return TrainerSharding::kDdp;
  }
  if (strategy.hybrid) {
    // FSDP1's HYBRID_SHARD always shards within a node.
    if (hybrid_on_fsdp1 && ranks.shard == ranks.per_node) return TrainerSharding::kFsdp1;
    settings.overrides.emplace_back("stack.hsdp_on_fsdp1=false");
    return TrainerSharding::kFsdp2;
  }
  if (strategy.software == Software::kNone) return TrainerSharding::kNone;
  if (strategy.software == Software::kDdp) return TrainerSharding::kDdp;
  if (strategy.software == Software::kFsdp1) return TrainerSharding::kFsdp1;
  if (strategy.software == Software::kFsdp2 && !strategy.second_shard)
    return TrainerSharding::kFsdp2;
  run.strategy = nearest_fsdp2(plan.strategy);
  const bool yafsdp = strategy.software == Software::kYafsdp;
  settings.lost(
      "strategy",
      fmt::format("Accelerate has no {}; the settings run FSDP2 {} resharding after "
                  "forward (--format {} keeps the strategy)",
                  name_of(plan.strategy), run.strategy == Strategy::kFsdp2 ? "with" : "without",
                  yafsdp ? "yafsdp" : "deepspeed"));
  return TrainerSharding::kFsdp2;
}

void remark_accelerate_dtypes(const Plan& plan, bool shards, TrainerSettings& settings) {
  Plan& run = settings.as_run;
  if (shards && plan.param_dtype == DType::kBf16 && plan.reduce_dtype == DType::kFp32) {
    settings.lost("reduce_dtype",
                  "fp32; mixed_precision bf16 reduces gradients in bf16. To keep the plan, pass "
                  "FullyShardedDataParallelPlugin a mixed_precision_policy with reduce_dtype "
                  "float32 in the script");
    run.reduce_dtype = DType::kBf16;
  }
  if (shards && plan.param_dtype == DType::kFp32 && plan.reduce_dtype == DType::kBf16) {
    settings.lost("reduce_dtype", "bf16; without mixed precision gradients are reduced in fp32");
    run.reduce_dtype = DType::kFp32;
  }
  if (plan.master_dtype != DType::kFp32 || plan.moment_dtype != DType::kFp32) {
    settings.lost("moment_dtype",
                  fmt::format("master weights in {} with moments in {} are up to the script: both "
                              "follow the dtype in which it loads the model, and are predicted as "
                              "fp32",
                              name_of(plan.master_dtype), name_of(plan.moment_dtype)));
    run.master_dtype = run.moment_dtype = DType::kFp32;
  }
  if (plan.offload == Offload::kOptimizer) {
    settings.lost("offload",
                  "the optimizer alone is offloaded; fsdp_offload_params moves "
                  "parameters and gradients, too, and stays off");
    run.offload = Offload::kNone;
  }
}

}  // namespace

bool is_accelerate(const SettingBox& box) {
  return box.has("distributed_type") || box.has("compute_environment") || box.has("fsdp_config");
}

void read_accelerate(SettingBox& box, ImportedConfig& to) {
  read_rows(kAccelerate, box, to);
}

TrainerSettings accelerate_settings(const sim::Job& inputs, const Plan& plan) {
  refuse_model_parallel(plan, "Accelerate");
  TrainerSettings settings;
  settings.as_run = plan;
  Told told{inputs, plan, settings.as_run, ranks_of(inputs, plan)};
  told.sharding = choose_wrapper(plan, told.ranks, inputs.profile.stack.hsdp_on_fsdp1, settings);
  remark_stack(plan, "Accelerate with Transformers", "hf-eager", settings);
  // The stack's benchmark wraps them; Accelerate's policy names one class, the layer's.
  settings.overrides.emplace_back("stack.wraps_embedding_and_head=false");
  remark_accelerate_dtypes(plan, When::fsdp(told), settings);
  if (When::fsdp(told)) {
    remark_gather_window(plan, "Accelerate",
                         When::fsdp1(told)
                             ? "FSDP1 gathers one unit ahead (BACKWARD_PRE, forward prefetch)"
                             : "FSDP2 gathers one layer ahead",
                         settings);
    told.checkpoints = checkpoint_all_or_none(
        plan, inputs.model.layers, "Accelerate", settings,
        fmt::format(". To keep the plan, turn fsdp_activation_checkpointing off and call "
                    "apply_activation_checkpointing in the script for {}[:{}]",
                    module_names(inputs.model).layers, checkpointed_layers(plan)));
  } else if (checkpointed_layers(plan) > 0) {
    settings.lost("ckpt_layers",
                  fmt::format("{} are checkpointed; without FSDP the script decides "
                              "(gradient_checkpointing_enable() checkpoints all)",
                              of_layers(checkpointed_layers(plan), inputs.model.layers)));
  }
  if (When::fsdp1(told))
    settings.overrides.push_back(fmt::format("stack.fsdp1_forward_prefetch={}", plan.prefetch > 0));
  if (Wrapped::nodes(told)) {
    settings.said("gpus", fmt::format("every one of the {} machines also needs its machine_rank, "
                                      "and all main_process_ip and main_process_port",
                                      told.ranks.nodes));
  }
  settings.said(
      "micro_batch",
      fmt::format("the script's own: --per_device_train_batch_size {} "
                  "--gradient_accumulation_steps {}, sequences of {} tokens, "
                  "attn_implementation {}",
                  plan.micro_batch, plan.grad_accum, plan.seq_len,
                  plan.attention == AttentionKind::kFlash ? "flash_attention_2" : "eager"));
  settings.body = yaml_of(kAccelerate, told);
  return settings;
}

}  // namespace shardwright::cli
