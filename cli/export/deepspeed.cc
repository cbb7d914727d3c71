// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's config. Option names from deepspeed/runtime/zero/config.py, runtime/config.py,
// runtime/precision_config.py and www.deepspeed.ai/docs/config-json.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/export/settings.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

// What the simulated stages use, and DeepSpeed's own default.
constexpr std::int64_t kBucketElements = 500'000'000;

void set_zero_strategy(const Plan& plan, TrainerSettings& settings) {
  Plan& run = settings.as_run;
  const StrategyInfo& strategy = info_of(plan.strategy);
  if (strategy.replicates() || strategy.software == Software::kDeepSpeed) return;
  if (!strategy.reshards) {
    run.strategy = Strategy::kZero2;
    settings.lost("strategy",
                  fmt::format("{} shards parameters between steps; the nearest is stage 2, which "
                              "keeps them whole and gathers them after the optimizer",
                              strategy.name));
    return;
  }
  run.strategy = Strategy::kZero3;
  if (strategy.hybrid) {
    settings.lost("strategy",
                  fmt::format("DeepSpeed no longer shards in groups (MiCS was removed in 2026), so "
                              "hsdp becomes stage 3 over all {} GPUs",
                              plan.gpus));
    if (plan.shard_group > 0) {
      settings.lost("shard_group", fmt::format("{}; all GPUs share one copy", plan.shard_group));
    }
    run.shard_group = 0;
    return;
  }
  settings.lost("strategy",
                fmt::format("{} becomes ZeRO stage 3, which gathers parameter by parameter into "
                            "fresh memory and reduces gradients in buckets",
                            strategy.name));
}

Json zero_section(const Plan& plan, const Ranks& ranks, const ParameterCounts& counts,
                  TrainerSettings& settings) {
  const int stage = info_of(plan.strategy).zero_stage();
  Json zero{{"stage", stage}};
  if (stage == 0) return zero;
  zero["overlap_comm"] = true;
  zero["contiguous_gradients"] = true;
  zero["reduce_scatter"] = true;
  zero["reduce_bucket_size"] = kBucketElements;
  if (stage < 3) {
    zero["allgather_partitions"] = true;
    zero["allgather_bucket_size"] = kBucketElements;
  } else {
    const std::int64_t ahead = std::max<std::int64_t>(plan.gather_window() - 1, 0);
    const std::int64_t largest = std::max({counts.layer(), counts.embedding, counts.head});
    zero["stage3_prefetch_bucket_size"] = ahead * counts.layer();
    zero["stage3_max_live_parameters"] = (ahead + 1) * largest;
    zero["stage3_max_reuse_distance"] = 0;
    settings.said("prefetch",
                  fmt::format("{} gathered ahead: stage3_prefetch_bucket_size and "
                              "stage3_max_live_parameters count parameters",
                              ahead == 1 ? "1 layer" : fmt::format("{} layers", ahead)));
    if (info_of(plan.strategy).second_shard) zero["zero_hpz_partition_size"] = ranks.per_node;
  }
  if (plan.offload == Offload::kOptimizer)
    zero["offload_optimizer"] = {{"device", "cpu"}, {"pin_memory", true}};
  return zero;
}

Json precision_section(const Plan& plan, TrainerSettings& settings) {
  Json bf16{{"enabled", plan.param_dtype == DType::kBf16}};
  if (plan.master_dtype == DType::kFp32 && plan.moment_dtype == DType::kFp32) return bf16;
  if (plan.param_dtype == DType::kBf16 && plan.master_dtype == DType::kBf16 &&
      info_of(plan.strategy).zero_stage() > 0) {
    bf16["bf16_master_weights_and_grads"] = true;
    bf16["bf16_optimizer_states"] = plan.moment_dtype == DType::kBf16;
    return bf16;
  }
  settings.lost("moment_dtype",
                fmt::format("master weights in {} with moments in {}; DeepSpeed keeps moments in "
                            "bf16 only beside bf16 master weights and under ZeRO, so both are fp32",
                            name_of(plan.master_dtype), name_of(plan.moment_dtype)));
  settings.as_run.master_dtype = settings.as_run.moment_dtype = DType::kFp32;
  return bf16;
}

/// The type in which gradients of micro-batches are summed. Outside ZeRO the engine implements only
/// that of the model (deepspeed/runtime/engine.py, "unsupported mix of model_dtype").
void set_accumulation(const Plan& plan, TrainerSettings& settings, Json& config) {
  const bool zero = info_of(plan.strategy).zero_stage() > 0;
  if (!zero && plan.param_dtype == DType::kBf16) {
    if (plan.grad_accum > 1) {
      settings.lost("grad_accum",
                    fmt::format("without ZeRO DeepSpeed sums the gradients of the {} micro-batches "
                                "in bf16",
                                plan.grad_accum));
    }
    return;
  }
  config["data_types"] = {{"grad_accum_dtype", name_of(settings.as_run.master_dtype)}};
}

Json checkpoint_section(const Plan& plan, std::int64_t layers, TrainerSettings& settings) {
  const std::int64_t k = checkpointed_layers(plan);
  if (k == 0) return nullptr;
  settings.lost(
      "ckpt_layers",
      fmt::format(
          "{} are checkpointed ({}); DeepSpeed's section only sets how its own checkpoint() "
          "works, and the model's code decides which layers call it: Transformers' "
          "gradient_checkpointing_enable() takes all",
          of_layers(k, layers), recompute_name(plan)));
  Plan& run = settings.as_run;
  run.recompute = Recompute::kFull;
  run.pieces = 0;
  run.ckpt_layers = layers;
  run.ckpt_stride = 1;
  return {{"partition_activations", false},           {"cpu_checkpointing", false},
          {"contiguous_memory_optimization", false},  {"number_checkpoints", k},
          {"synchronize_checkpoint_boundary", false}, {"profile", false}};
}

}  // namespace

TrainerSettings deepspeed_settings(const sim::Job& inputs, const Plan& plan) {
  refuse_model_parallel(plan, "DeepSpeed");
  TrainerSettings settings;
  settings.as_run = plan;
  const Ranks ranks = ranks_of(inputs, plan);
  set_zero_strategy(plan, settings);
  remark_stack(plan, "DeepSpeed with Transformers", "hf-eager", settings);
  Json config{{"train_batch_size", plan.gpus * plan.micro_batch * plan.grad_accum},
              {"train_micro_batch_size_per_gpu", plan.micro_batch},
              {"gradient_accumulation_steps", plan.grad_accum},
              {"gradient_clipping", 1.0},
              {"bf16", precision_section(plan, settings)},
              {"communication_data_type", name_of(plan.reduce_dtype)}};
  set_accumulation(plan, settings, config);
  config["zero_optimization"] = zero_section(plan, ranks, count_parameters(inputs.model), settings);
  config["zero_allow_untested_optimizer"] = true;
  if (Json section = checkpoint_section(plan, inputs.model.layers, settings); !section.is_null())
    config["activation_checkpointing"] = std::move(section);
  settings.said("seq_len", fmt::format("the script's own: sequences of {} tokens, {} attention",
                                       plan.seq_len, name_of(plan.attention)));
  settings.said("gpus", fmt::format("start with deepspeed --num_nodes {} --num_gpus {} SCRIPT "
                                    "--deepspeed_config FILE",
                                    ranks.nodes, ranks.per_node));
  settings.body = json_source(config.dump(2) + "\n");
  return settings;
}

}  // namespace shardwright::cli
