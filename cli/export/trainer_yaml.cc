// SPDX-License-Identifier: Apache-2.0
#include "cli/export/trainer_yaml.h"

#include <fmt/core.h>

#include "sim/core/features.h"

namespace shardwright::cli {
namespace {

void choose_trainer_sharding(const Plan& plan, std::string_view trainer, TrainerRun& run,
                             TrainerSettings& settings) {
  const StrategyInfo& strategy = info_of(plan.strategy);
  Plan& as_run = settings.as_run;
  if (plan.gpus == 1) {
    run.sharding = TrainerSharding::kNone;
    as_run.strategy = Strategy::kSingle;
  } else if (strategy.software == Software::kDdp) {
    run.sharding = TrainerSharding::kDdp;
  } else if (strategy.software == Software::kDeepSpeed) {
    run.sharding = TrainerSharding::kZero;
  } else if (strategy.software == Software::kFsdp1 && !strategy.hybrid) {
    run.sharding = TrainerSharding::kFsdp1;
  } else {
    run.sharding = TrainerSharding::kFsdp2;
    if (strategy.software != Software::kFsdp2 || strategy.second_shard) {
      if (!strategy.hybrid) as_run.strategy = nearest_fsdp2(plan.strategy);
    }
    if (as_run.strategy != plan.strategy)
      settings.lost("strategy", fmt::format("{} has no {}; the settings run {}", trainer,
                                            strategy.name, name_of(as_run.strategy)));
  }
}

void remark_trainer_dtypes(const Plan& plan, TrainerSettings& settings) {
  Plan& run = settings.as_run;
  if (plan.param_dtype == DType::kBf16 && plan.reduce_dtype == DType::kFp32) {
    settings.lost("reduce_dtype", "fp32; bf16: true reduces gradients in bf16");
    run.reduce_dtype = DType::kBf16;
  }
  if (plan.offload != Offload::kNone) {
    settings.lost("offload", "left to DeepSpeed's own file, which is not written here");
    run.offload = Offload::kNone;
  }
}

}  // namespace

const char* yaml_switch(bool on) {
  return on ? "true" : "false";
}

void refuse_beyond_fine_tuning(const Plan& plan, std::string_view trainer) {
  Features does = {Feature::kAdapters, Feature::kQuantized, Feature::kActivationOffload};
  if (plan.numerics.optimizer == Optimizer::kAdamw8bit) does.add(Feature::kOptimizer);
  refuse_beyond(plan, does, fmt::format("{} divides data alone", trainer),
                "--format torchtitan, megatron-lm or megatron-bridge");
}

bool checkpoint_all_or_none(const Plan& plan, std::int64_t layers, std::string_view trainer,
                            TrainerSettings& settings) {
  const std::int64_t count = checkpointed_layers(plan);
  if (count == 0) return false;
  Plan& run = settings.as_run;
  run.recompute = Recompute::kFull;
  run.pieces = 0;
  run.ckpt_layers = layers;
  run.ckpt_stride = 1;
  if (plan.recompute != Recompute::kFull)
    settings.lost("recompute",
                  fmt::format("{}; {} recomputes whole layers", recompute_name(plan), trainer));
  if (count < layers) {
    settings.lost("ckpt_layers",
                  fmt::format("{} are checkpointed; {} knows all or none, so all are: less memory "
                              "than planned, {} layers more to recompute",
                              of_layers(count, layers), trainer, layers - count));
  }
  return true;
}

TrainerRun follow_on_trainer(const sim::Job& inputs, const Plan& plan, std::string_view trainer,
                             TrainerSettings& settings) {
  refuse_beyond_fine_tuning(plan, trainer);
  settings.as_run = plan;
  TrainerRun run;
  choose_trainer_sharding(plan, trainer, run, settings);
  remark_trainer_dtypes(plan, settings);
  run.checkpoints = checkpoint_all_or_none(plan, inputs.model.layers, trainer, settings);
  const bool usual = !features_of(settings.as_run).any() && !inputs.model.is_moe();
  remark_stack(plan, trainer, usual ? "hf-eager" : "hf-trainer", settings);
  if (run.sharding == TrainerSharding::kFsdp1 || run.sharding == TrainerSharding::kFsdp2) {
    remark_gather_window(plan, trainer, "FSDP gathers one layer ahead", settings);
    settings.overrides.emplace_back("stack.wraps_embedding_and_head=false");
  }
  settings.said(
      "model", fmt::format("{} is the name here; the trainer takes its Hugging Face name or folder",
                           inputs.model_name));
  settings.said("data", "the data set and the learning rate are yours to add");
  return run;
}

}  // namespace shardwright::cli
