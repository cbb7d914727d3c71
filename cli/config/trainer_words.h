// SPDX-License-Identifier: Apache-2.0
// What the files of those trainers say alike that are built on Transformers' Trainer (axolotl,
// LLaMA-Factory) and torchtune: the names of optimizers, and DeepSpeed's files by their names.
#pragma once

#include <cstdint>
#include <string>

#include "cli/config/imported.h"

namespace shardwright::cli {

std::string lower_case_word(std::string text);

/// "adamw_torch_fused", "paged_adamw_8bit", "bitsandbytes.optim.AdamW8bit", ..
void take_optimizer_word(SettingBox& box, std::string_view key, ImportedConfig& to);

/// The ZeRO stage of a file named after it ("zero3_bf16.json", "ds_z3_offload_config.json"), and
/// what it offloads. False: the key is not there.
bool take_deepspeed_file(SettingBox& box, ImportedConfig& to);

/// Of a loss whose kernel never holds all logits (Liger's, Apple's cut cross entropy): about
/// vocabulary over hidden size, as in Liger's formula.
inline constexpr std::int64_t kFusedLossPieces = 16;
/// Such a loss, as one in pieces; notes what was taken last.
void take_fused_loss(SettingBox& box, ImportedConfig& to);

}  // namespace shardwright::cli
