// SPDX-License-Identifier: Apache-2.0
// What the simulator says of a run's plan before it runs: the schedules that are walked, and what
// its steps are held against.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/run/options.h"
#include "profiles/cluster_file.h"
#include "sim/core/schedule.h"
#include "sim/cost/attention_cost.h"
#include "sim/trace/step_summary.h"

namespace shardwright::cli {

/// What the simulator says about the run's plan.
struct Predicted {
  std::optional<double> step_s;
  sim::Utilisation utilisation;
  std::optional<sim::PlannedAttention> attention;  // of GPUs
  std::vector<Schedule> stages;                    // one without pipeline parallelism
  std::int64_t gpus_per_node = 1;
  std::string cluster;                 // that steps are predicted for
  profiles::ClusterFile cluster_file;  // the same with the values of this machine
};

/// The plan lowered for the native stack, and its step time, where sequences may hold several
/// documents. What cannot be predicted is a note of the options. Throws Error.
Predicted lower_and_predict(RunOptions& options, bool packs_documents);

}  // namespace shardwright::cli
