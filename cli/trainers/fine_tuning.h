// SPDX-License-Identifier: Apache-2.0
// What trainers that are built on Transformers' Trainer (axolotl, LLaMA-Factory, Unsloth) and
// torchtune read and write alike: they differ in the words of their files, not in what runs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cli/trainers/rows.h"

namespace shardwright::cli {

/// "adamw_torch_fused", "paged_adamw_8bit", "bitsandbytes.optim.AdamW8bit", ..
void take_optimizer_word(SettingBox& box, std::string_view key, ImportedConfig& to);

/// The ZeRO stage of a file named after it ("zero3_bf16.json", "ds_z3_offload_config.json"), and
/// what it offloads. False: the key is not there.
bool take_deepspeed_file(SettingBox& box, ImportedConfig& to);

/// What DeepSpeed's own file and Accelerate's say alike (deepspeed.cc): stages, and where the
/// optimizer's state is kept: none, cpu or nvme.
Strategy zero_strategy(std::int64_t stage);
void take_optimizer_device(SettingBox& box, std::string_view key, ImportedConfig& to);
std::string upper_case(std::string text);

/// Transformers' `words` of FSDP: full_shard, shard_grad_op, hybrid_shard. `reshards`, where it is
/// said, overrides them.
void take_fsdp_words(SettingBox& box, const std::string& words, bool version_2,
                     std::optional<bool> reshards, ImportedConfig& to);

/// Of a loss whose kernel never holds all logits (Liger's, Apple's cut cross entropy): about
/// vocabulary over hidden size, as in Liger's formula.
inline constexpr std::int64_t kFusedLossPieces = 16;
inline constexpr std::string_view kFusedLoss = "16";

inline constexpr std::string_view kStaysOnGpu = "what is kept stays on the GPU here";
inline constexpr std::string_view kMovesParameters =
    "it moves parameters and gradients to the host";
inline constexpr std::string_view kTrainedWhole =
    "modules that are trained whole beside adapters are not predicted";
inline constexpr const char* kAllHaveAdapters = "all projections have adapters in the prediction";

/// Throws Error for what is model-parallel or multiplies in fewer bits than 16. Only adapters,
/// quantized weights and optimizers of 8 bits are more than data parallelism there.
void refuse_beyond_fine_tuning(const Plan& plan, std::string_view trainer);

/// What Transformers' Trainer makes of `plan`. Fills as_run, overrides and remarks, except those of
/// copies of the parameters (hsdp).
Told follow_on_trainer(const sim::Job& inputs, const Plan& plan, std::string_view trainer,
                       TrainerSettings& settings);

/// Checkpointing as software does it that knows all layers or none; whether it is on. `instead`:
/// how the planned layers could be checkpointed beside the file.
bool checkpoint_all_or_none(const Plan& plan, std::int64_t layers, std::string_view trainer,
                            TrainerSettings& settings, const std::string& instead = {});

}  // namespace shardwright::cli
