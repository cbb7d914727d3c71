// SPDX-License-Identifier: Apache-2.0
// What fine-tuning on Transformers' Trainer makes of a plan: axolotl and LLaMA-Factory differ in
// the words of their files, not in what runs.
#pragma once

#include <string_view>

#include "cli/export/settings.h"

namespace shardwright::cli {

enum class TrainerSharding : std::uint8_t { kNone, kDdp, kZero, kFsdp1, kFsdp2 };

struct TrainerRun {
  TrainerSharding sharding = TrainerSharding::kNone;
  bool checkpoints = false;  // every layer
};

/// Throws Error for what is model-parallel or multiplies in fewer bits than 16. Only adapters,
/// quantized weights and optimizers of 8 bits are more than data parallelism there.
void refuse_beyond_fine_tuning(const Plan& plan, std::string_view trainer);

/// Fills as_run, overrides and remarks, except those of copies of the parameters (hsdp).
TrainerRun follow_on_trainer(const sim::Job& inputs, const Plan& plan, std::string_view trainer,
                             TrainerSettings& settings);

/// Checkpointing as software does it that knows all layers or none; whether it is on.
bool checkpoint_all_or_none(const Plan& plan, std::int64_t layers, std::string_view trainer,
                            TrainerSettings& settings);

/// "true" or "false".
const char* yaml_switch(bool on);

}  // namespace shardwright::cli
