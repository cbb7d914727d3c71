// SPDX-License-Identifier: Apache-2.0
// Published training runs against what would have been predicted: validate --whole-runs.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "profiles/ledger/whole_runs.h"
#include "profiles/uncertainty/production.h"
#include "tuner/runs/whole_run_ideal.h"

namespace shardwright::tuner {

struct ScoredWholeRun {
  profiles::WholeRun run;
  std::string skipped;  // why it was not predicted; empty: it was
  IdealHours ideal;
  double gpu_hours = 0;  // of the whole run
  std::array<double, 2> interval_gpu_hours{};
  bool inside = false;

  /// Predicted over published.
  double ratio() const { return gpu_hours / run.gpu_hours; }
};

struct WholeRunSummary {
  std::int64_t n = 0, inside = 0;  // tiers A and B
  double median_ratio = 1;         // of predicted over published
  double median_width = 1;         // of the interval's upper over lower end
};

struct WholeRunScore {
  std::vector<ScoredWholeRun> runs;
  WholeRunSummary summary;
};

struct WholeRunOptions {
  std::vector<std::string> overrides;
  std::function<void(std::int64_t done)> progress;
};

WholeRunScore score_whole_runs(const std::vector<profiles::WholeRun>& runs,
                               const profiles::Production& production,
                               const WholeRunOptions& options = {});

}  // namespace shardwright::tuner
