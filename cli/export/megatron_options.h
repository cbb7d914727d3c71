// SPDX-License-Identifier: Apache-2.0
// A plan as options of Megatron: the argument that Megatron-LM takes on its command line, and the
// field of Megatron-Bridge's ConfigContainer that says the same.
//
// Names: arguments of megatron/training/arguments.py; fields of megatron-core 0.16
// (model_parallel_config.py, transformer/transformer_config.py,
// distributed/distributed_data_parallel_config.py, optimizer/optimizer_config.py), in which
// scripts/check_exports looks each of them up, and of Megatron-Bridge 0.3 (training/config.py).
#pragma once

#include <string_view>
#include <vector>

#include "cli/export/settings.h"

namespace shardwright::cli {

struct MegatronOption {
  std::string_view group;     // heading: "parallelism"
  std::string_view argument;  // "--tensor-model-parallel-size"; empty: Bridge alone has it
  ShellSource value;          // empty: a switch
  std::string_view field;     // "model.tensor_model_parallel_size"; empty: Megatron-LM alone has it
  PythonSource python;        // its value
};
using MegatronOptions = std::vector<MegatronOption>;

/// What the model is. Arguments only: a recipe of Bridge has its model already.
MegatronOptions megatron_model_options(const sim::Job& inputs, const Plan& plan,
                                       TrainerSettings& settings);
/// How it is trained, with remarks on what Megatron cannot be told. Throws Error naming a schedule,
/// an order of ranks or another choice that it does not have.
MegatronOptions megatron_plan_options(const sim::Job& inputs, const Plan& plan,
                                      TrainerSettings& settings);

}  // namespace shardwright::cli
