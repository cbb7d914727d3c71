// SPDX-License-Identifier: Apache-2.0
// One option of torchtitan, and those that are model-parallel.
//
// Names of ParallelismConfig and CompileConfig of 0.3 (torchtitan/config/configs.py). Stages are
// given as lists of module names (module_fqns_per_model_part), so that they hold what the plan says
// and not what torchtitan would choose; with a pipeline a rank's local batch is all micro-batches
// of a step, which the schedule cuts.
#pragma once

#include <string_view>
#include <vector>

#include "cli/export/settings.h"

namespace shardwright::cli {

struct TitanOption {
  std::string_view section, key;
  JsonSource value;  // but for booleans TOML and Python write the same
  JsonSource comment{};
};
using TitanOptions = std::vector<TitanOption>;

/// Whether the plan needs the options below.
bool shards_for_titan(const Plan& plan);

/// Empty for a plan of data parallelism. Throws Error naming what torchtitan does not have.
TitanOptions titan_parallelism(const sim::Job& inputs, const Plan& plan, TrainerSettings& settings);

}  // namespace shardwright::cli
