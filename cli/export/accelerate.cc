// SPDX-License-Identifier: Apache-2.0
// Accelerate's config file. Option names from its guides "FSDP" and "FSDP1 vs FSDP2" and from
// accelerate/utils/dataclasses.py (FullyShardedDataParallelPlugin, ParallelismConfig); what bf16
// means for reductions from tests/fsdp/test_fsdp.py (param, reduce and buffer dtype alike).
#include <fmt/core.h>

#include <string>

#include "cli/export/module_names.h"
#include "cli/export/settings.h"

namespace shardwright::cli {
namespace {

enum class Wrapper { kNone, kDdp, kFsdp1, kFsdp2 };

const char* yes(bool value) {
  return value ? "true" : "false";
}

Wrapper choose_wrapper(const Plan& plan, const Ranks& ranks, bool hybrid_on_fsdp1,
                       TrainerSettings& settings) {
  Plan& run = settings.as_run;
  const StrategyInfo& strategy = info_of(plan.strategy);
  if (strategy.hybrid && ranks.shard == 1) {
    run.strategy = Strategy::kDdp;
    run.shard_group = 0;
    settings.lost("shard_group", "1; without sharding there are no groups");
    settings.lost("strategy",
                  "hsdp in groups of one GPU shards nothing: Accelerate runs it as DDP");
    return Wrapper::kDdp;
  }
  if (strategy.hybrid) {
    // FSDP1's HYBRID_SHARD always shards within a node.
    if (hybrid_on_fsdp1 && ranks.shard == ranks.per_node) return Wrapper::kFsdp1;
    settings.overrides.emplace_back("stack.hsdp_on_fsdp1=false");
    return Wrapper::kFsdp2;
  }
  if (strategy.software == Software::kNone) return Wrapper::kNone;
  if (strategy.software == Software::kDdp) return Wrapper::kDdp;
  if (strategy.software == Software::kFsdp1) return Wrapper::kFsdp1;
  if (strategy.software == Software::kFsdp2 && !strategy.second_shard) return Wrapper::kFsdp2;
  run.strategy = nearest_fsdp2(plan.strategy);
  const bool yafsdp = strategy.software == Software::kYafsdp;
  settings.lost(
      "strategy",
      fmt::format("Accelerate has no {}; the settings run FSDP2 {} resharding after "
                  "forward (--format {} keeps the strategy)",
                  name_of(plan.strategy), run.strategy == Strategy::kFsdp2 ? "with" : "without",
                  yafsdp ? "yafsdp" : "deepspeed"));
  return Wrapper::kFsdp2;
}

/// All layers or none: the wrap policy's layers are the ones that are checkpointed.
bool checkpoints_all(const Plan& plan, std::int64_t layers, const ModuleNames& names,
                     TrainerSettings& settings) {
  const std::int64_t k = checkpointed_layers(plan);
  if (k == 0) return false;
  Plan& run = settings.as_run;
  run.recompute = Recompute::kFull;
  run.pieces = 0;
  run.ckpt_layers = layers;
  run.ckpt_stride = 1;
  if (plan.recompute != Recompute::kFull) {
    settings.lost("recompute",
                  fmt::format("{}; Accelerate recomputes whole layers", recompute_name(plan)));
  }
  if (k < layers) {
    settings.lost(
        "ckpt_layers",
        fmt::format("{} are checkpointed; Accelerate knows all or none, so all are: less memory "
                    "than planned, {} layers more to recompute. To keep the plan, turn "
                    "fsdp_activation_checkpointing off and call apply_activation_checkpointing in "
                    "the script for {}[:{}]",
                    of_layers(k, layers), layers - k, names.layers, k));
  }
  return true;
}

void remark_dtypes(const Plan& plan, Wrapper wrapper, TrainerSettings& settings) {
  Plan& run = settings.as_run;
  const bool shards = wrapper == Wrapper::kFsdp1 || wrapper == Wrapper::kFsdp2;
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

YamlSource fsdp_section(const Plan& plan, Wrapper wrapper, const sim::Job& inputs,
                        TrainerSettings& settings) {
  const ModuleNames& names = module_names(inputs.model);
  const bool resharded = info_of(settings.as_run.strategy).reshards;
  const bool checkpoints = checkpoints_all(plan, inputs.model.layers, names, settings);
  YamlSource text = "fsdp_config:\n";
  if (wrapper == Wrapper::kFsdp1) {
    const char* sharding = info_of(plan.strategy).hybrid ? "HYBRID_SHARD"
                           : resharded                   ? "FULL_SHARD"
                                                         : "SHARD_GRAD_OP";
    text += YamlSource::format(
        "  fsdp_version: 1\n"
        "  fsdp_sharding_strategy: {}\n"
        "  fsdp_backward_prefetch: BACKWARD_PRE\n"
        "  fsdp_forward_prefetch: {}\n"
        "  fsdp_use_orig_params: true\n"
        "  fsdp_sync_module_states: true\n",
        sharding, yes(plan.prefetch > 0));
    settings.overrides.push_back(
        fmt::format("stack.fsdp1_forward_prefetch={}", yes(plan.prefetch > 0)));
  } else {
    text +=
        YamlSource::format("  fsdp_version: 2\n  fsdp_reshard_after_forward: {}\n", yes(resharded));
  }
  return text + YamlSource::format(
                    "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
                    "  fsdp_transformer_layer_cls_to_wrap: {}\n"
                    "  fsdp_activation_checkpointing: {}\n"
                    "  fsdp_offload_params: false\n"
                    "  fsdp_cpu_ram_efficient_loading: true\n"
                    "  fsdp_state_dict_type: SHARDED_STATE_DICT\n",
                    bare(names.layer_class), yes(checkpoints));
}

}  // namespace

TrainerSettings accelerate_settings(const sim::Job& inputs, const Plan& plan) {
  refuse_model_parallel(plan, "Accelerate");
  TrainerSettings settings;
  settings.as_run = plan;
  const Ranks ranks = ranks_of(inputs, plan);
  const Wrapper wrapper = choose_wrapper(plan, ranks, inputs.profile.stack.hsdp_on_fsdp1, settings);
  const bool shards = wrapper == Wrapper::kFsdp1 || wrapper == Wrapper::kFsdp2;
  remark_stack(plan, "Accelerate with Transformers", "hf-eager", settings);
  // The stack's benchmark wraps them; Accelerate's policy names one class, the layer's.
  settings.overrides.emplace_back("stack.wraps_embedding_and_head=false");
  remark_dtypes(plan, wrapper, settings);
  if (shards) {
    remark_gather_window(plan, "Accelerate",
                         wrapper == Wrapper::kFsdp1
                             ? "FSDP1 gathers one unit ahead (BACKWARD_PRE, forward prefetch)"
                             : "FSDP2 gathers one layer ahead",
                         settings);
  }
  YamlSource text = YamlSource::format(
      "compute_environment: LOCAL_MACHINE\n"
      "distributed_type: {}\n"
      "mixed_precision: {}\n"
      "num_machines: {}\n"
      "num_processes: {}\n"
      "machine_rank: 0\n"
      "main_training_function: main\n"
      "rdzv_backend: {}\n"
      "same_network: true\n"
      "use_cpu: false\n",
      shards                     ? "FSDP"
      : wrapper == Wrapper::kDdp ? "MULTI_GPU"
                                 : "'NO'",
      plan.param_dtype == DType::kBf16 ? "bf16" : "'no'", ranks.nodes, plan.gpus,
      ranks.nodes > 1 ? "c10d" : "static");
  if (shards) {
    text += fsdp_section(plan, wrapper, inputs, settings);
    if (wrapper == Wrapper::kFsdp2 && ranks.replicate > 1) {
      text += YamlSource::format(
          "parallelism_config:\n"
          "  parallelism_config_dp_replicate_size: {}\n"
          "  parallelism_config_dp_shard_size: {}\n",
          ranks.replicate, ranks.shard);
    }
  } else if (checkpointed_layers(plan) > 0) {
    settings.lost("ckpt_layers",
                  fmt::format("{} are checkpointed; without FSDP the script decides "
                              "(gradient_checkpointing_enable() checkpoints all)",
                              of_layers(checkpointed_layers(plan), inputs.model.layers)));
  }
  if (ranks.nodes > 1) {
    settings.said("gpus", fmt::format("every one of the {} machines also needs its machine_rank, "
                                      "and all main_process_ip and main_process_port",
                                      ranks.nodes));
  }
  settings.said(
      "micro_batch",
      fmt::format("the script's own: --per_device_train_batch_size {} "
                  "--gradient_accumulation_steps {}, sequences of {} tokens, "
                  "attn_implementation {}",
                  plan.micro_batch, plan.grad_accum, plan.seq_len,
                  plan.attention == AttentionKind::kFlash ? "flash_attention_2" : "eager"));
  settings.body = text;
  return settings;
}

}  // namespace shardwright::cli
