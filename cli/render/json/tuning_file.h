// SPDX-License-Identifier: Apache-2.0
// What `tune --json` said, read back for the report.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/plan.h"

namespace shardwright::cli {

struct TunedPlan {
  Plan plan;
  double iteration_s = 0;
  double tokens_per_s = 0;
  double total_bytes = 0;  // of a GPU's memory
  double usable_bytes = 0;
  double cost = 0;  // more than the best, as a fraction of the objective
};

struct TunedModel {
  std::string name;  // as it was given
  std::int64_t parameters = 0;
  std::int64_t layers = 0;
};

struct TuningSummary {
  std::optional<TunedModel> model;  // none: nothing fits
  std::string objective;
  double considered = 0;
  double seconds = 0;
  std::vector<TunedPlan> top;     // best first; empty: nothing fits
  std::vector<TunedPlan> pareto;  // time against memory
  std::vector<std::string> why;   // full sentences
};

/// Throws Error naming file and key when it is no document of `tune --json`.
TuningSummary read_tuning(const std::filesystem::path& path);

}  // namespace shardwright::cli
