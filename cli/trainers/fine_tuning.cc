// SPDX-License-Identifier: Apache-2.0
#include "cli/trainers/fine_tuning.h"

#include <fmt/core.h>

#include <utility>

#include "sim/core/base/words.h"
#include "sim/core/features.h"

namespace shardwright::cli {
namespace {

void choose_trainer_sharding(const Plan& plan, std::string_view trainer, Told& told,
                             TrainerSettings& settings) {
  const StrategyInfo& strategy = info_of(plan.strategy);
  Plan& as_run = settings.as_run;
  if (plan.gpus == 1) {
    told.sharding = TrainerSharding::kNone;
    as_run.strategy = Strategy::kSingle;
  } else if (strategy.software == Software::kDdp) {
    told.sharding = TrainerSharding::kDdp;
  } else if (strategy.software == Software::kDeepSpeed) {
    told.sharding = TrainerSharding::kZero;
  } else if (strategy.software == Software::kFsdp1 && !strategy.hybrid) {
    told.sharding = TrainerSharding::kFsdp1;
  } else {
    told.sharding = TrainerSharding::kFsdp2;
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

void take_optimizer_word(SettingBox& box, std::string_view key, ImportedConfig& to) {
  const auto name = box.take(key);
  if (!name) return;
  std::string word = lower_case(*name);
  word.erase(0, word.rfind('.') == word.npos ? 0 : word.rfind('.') + 1);
  const auto has = [&](std::string_view part) { return word.find(part) != word.npos; };
  if (has("8bit") && has("adam")) {
    box.set_knob("optimizer", "adamw-8bit", to);
  } else if (has("4bit") && has("adam")) {
    box.set_knob("optimizer", "adamw-8bit", to);
    to.not_taken.push_back({box.key(), *name, "moments of 4 bits are predicted as 8"});
  } else if (word == "muon" || word == "sgd") {
    box.set_knob("optimizer", word, to);
  } else if (word.starts_with("adamw") || word == "paged_adamw_32bit" || word == "paged_adamw" ||
             word == "pagedadamw") {
    box.set_knob("optimizer", "adamw", to);
  } else {
    to.not_taken.push_back({box.key(), *name, "predicted as AdamW"});
  }
}

void take_fsdp_words(SettingBox& box, const std::string& words, bool version_2,
                     std::optional<bool> reshards, ImportedConfig& to) {
  const bool never = !reshards.value_or(words.find("shard_grad_op") == words.npos);
  to.strategy = version_2 ? (never ? Strategy::kFsdp2NoReshard : Strategy::kFsdp2)
                          : (never ? Strategy::kFsdp1GradOp : Strategy::kFsdp1);
  if (words.find("hybrid") != words.npos) to.strategy = Strategy::kHsdp;
  box.took(fmt::format("strategy {}", name_of(to.strategy)), to);
  to.overrides.emplace_back("stack.wraps_embedding_and_head=false");
}

bool take_deepspeed_file(SettingBox& box, ImportedConfig& to) {
  const auto file = box.take("deepspeed");
  if (!file) return false;
  std::string word = lower_case(*file);
  word.erase(0, word.rfind('/') == word.npos ? 0 : word.rfind('/') + 1);
  bool found = false;
  for (const auto& [digit, strategy] :
       {std::pair{'0', Strategy::kDdp}, std::pair{'1', Strategy::kZero1},
        std::pair{'2', Strategy::kZero2}, std::pair{'3', Strategy::kZero3}}) {
    for (const std::string_view stage : {"zero", "_z"}) {
      if (word.find(std::string(stage) + digit) == word.npos) continue;
      to.strategy = strategy;
      found = true;
    }
  }
  if (!found) box.fail("a file named after its ZeRO stage; import that file itself");
  box.took(fmt::format("strategy {}, by the file's name", name_of(to.strategy)), to);
  if (word.find("offload") != word.npos) {
    box.set_knob("offload", "optimizer", to);
    // axolotl has one file that moves the parameters too; LLaMA-Factory's of stage 3 do.
    const bool parameters = word.find("cpuoffload_") != word.npos || word.find("_z3") != word.npos;
    if (parameters) to.not_taken.push_back({box.key(), *file, "parameters stay on the GPU here"});
  }
  return true;
}

void refuse_beyond_fine_tuning(const Plan& plan, std::string_view trainer) {
  Features does = {Feature::kAdapters, Feature::kQuantized, Feature::kActivationOffload};
  if (plan.numerics.optimizer == Optimizer::kAdamw8bit) does.add(Feature::kOptimizer);
  refuse_beyond(plan, does, fmt::format("{} divides data alone", trainer),
                "--format torchtitan, megatron-lm or megatron-bridge");
}

bool checkpoint_all_or_none(const Plan& plan, std::int64_t layers, std::string_view trainer,
                            TrainerSettings& settings, const std::string& instead) {
  const std::int64_t count = checkpointed_layers(plan);
  if (count == 0) return false;
  recompute_all_layers(settings.as_run, Recompute::kFull, layers);
  if (plan.recompute != Recompute::kFull)
    settings.lost("recompute",
                  fmt::format("{}; {} recomputes whole layers", recompute_name(plan), trainer));
  if (count < layers) {
    settings.lost("ckpt_layers",
                  fmt::format("{} are checkpointed; {} knows all or none, so all are: less memory "
                              "than planned, {} layers more to recompute{}",
                              of_layers(count, layers), trainer, layers - count, instead));
  }
  return true;
}

Told follow_on_trainer(const sim::Job& inputs, const Plan& plan, std::string_view trainer,
                       TrainerSettings& settings) {
  refuse_beyond_fine_tuning(plan, trainer);
  settings.as_run = plan;
  Told told{inputs, plan, settings.as_run};
  choose_trainer_sharding(plan, trainer, told, settings);
  remark_trainer_dtypes(plan, settings);
  told.checkpoints = checkpoint_all_or_none(plan, inputs.model.layers, trainer, settings);
  const bool usual = !features_of(settings.as_run).any() && !inputs.model.is_moe();
  remark_stack(plan, trainer, usual ? "hf-eager" : "hf-trainer", settings);
  if (When::fsdp(told)) {
    remark_gather_window(plan, trainer, "FSDP gathers one layer ahead", settings);
    settings.overrides.emplace_back("stack.wraps_embedding_and_head=false");
  }
  settings.said(
      "model", fmt::format("{} is the name here; the trainer takes its Hugging Face name or folder",
                           inputs.model_name));
  settings.said("data", "the data set and the learning rate are yours to add");
  told.ranks = ranks_of(inputs, settings.as_run);
  return told;
}

}  // namespace shardwright::cli
