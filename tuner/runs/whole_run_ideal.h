// SPDX-License-Identifier: Apache-2.0
// The ideal GPU hours of a published training: every token in steps as predicted, nothing lost.
//
// Where the layout is published (sharding, recomputation, micro-batch; tensor, pipeline and expert
// parallel sizes: whole_run_layout.h), that is held fixed and the rest is searched; where it is not
// published, the search decides on the row's GPUs and software. A dense model whose published
// division has no plan is planned with data parallelism instead. Where there is no published shape,
// or no plan at all, the step is analytic: model FLOPs at the share of the peak that published
// steady steps reach (Production::analytic_mfu). Whatever was assumed is told with the answer.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "profiles/ledger/whole_runs.h"
#include "profiles/profile.h"
#include "profiles/uncertainty/production.h"
#include "sim/predict.h"

namespace shardwright::tuner {

struct IdealHours {
  double gpu_hours = 0;
  double step_half_width = 0;                 // of the logarithm; 0: an analytic step
  profiles::AddedWidths added_half_widths{};  // what it is made of
  std::optional<Plan> plan;                   // none: an analytic step
  std::string stack, cluster;                 // empty: an analytic step
  std::vector<std::string> assumed;
};

/// Keeps profiles and constants between rows.
class IdealHoursOf {
 public:
  /// `analytic_mfu` as in profiles::Production.
  explicit IdealHoursOf(double analytic_mfu, std::vector<std::string> overrides = {});

  /// Of a run that can be scored (WholeRun::not_scorable is empty).
  IdealHours operator()(const profiles::WholeRun& run);

 private:
  std::optional<IdealHours> planned(const profiles::WholeRun& run,
                                    std::vector<std::string>& assumed);
  IdealHours analytic(const profiles::WholeRun& run, std::vector<std::string> assumed) const;
  const profiles::Profile& profile_of(const std::string& cluster, const std::string& stack);

  double analytic_mfu_;
  std::vector<std::string> overrides_;
  std::map<std::string, profiles::Profile, std::less<>> profiles_;  // by cluster and stack
};

/// The stack that stands for what a source calls its software, by words in it; else torch-compile
/// as it was when these models were trained.
std::string stack_of_software(const std::string& software);

/// The shipped GPU that a published name such as "a100-80g-sxm" means; empty: none.
std::string gpu_of_name(const std::string& published);

}  // namespace shardwright::tuner
