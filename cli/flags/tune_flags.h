// SPDX-License-Identifier: Apache-2.0
// The flags that only `tune` has, and what all of its flags together ask for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/flags/plan_flags.h"
#include "tuner/advice/tuning.h"
#include "tuner/search/request.h"

namespace shardwright::cli {

struct TuneFlags {
  PlanFlags plan;
  std::optional<std::int64_t> global_batch;
  std::int64_t threads = 0;          // 0: one for each core
  std::optional<double> time_limit;  // seconds of the search; none: until it is proven
  tuner::Objective objective = tuner::Objective::kTime;
  std::optional<double> headroom;  // none: what the interval of memory asks
  bool allow_bf16_reduce = false, allow_bf16_master = false, allow_bf16_moments = false;
  std::vector<Precision> allowed_precisions;
  std::vector<Optimizer> allowed_optimizers;
  std::vector<std::string> frameworks;  // --for
  bool allow_software = false;
  bool robust = false;
  bool recompute_for_speed = false;

  /// Binds the flags to this object, which must stay where it is.
  void declare(Command& command);
};

/// The search that the flags ask for, of the job that resolve_base() made of flags.plan. Throws
/// Error when they contradict each other.
tuner::Request request_of(const TuneFlags& flags, const sim::Job& job);

/// "5%", "5 %" or "0.05" as 0.05. Throws Error for what is no share of the memory.
double parse_headroom(const std::string& text);

// Which frameworks a search goes through: the one that was named, or those that are usual for data
// parallelism and for model parallelism.

struct FrameworkCandidates {
  std::vector<profiles::Profile> searched;  // as tuner::Frameworks
  std::string refusal;

  tuner::Frameworks frameworks(std::optional<double> headroom, std::int64_t gpus) const;
};

/// `job` is resolve_base()'s and `request` what its flags hold fixed. Throws Error where the
/// software that was named cannot do what is held fixed.
FrameworkCandidates candidates_of(const PlanFlags& flags, const sim::Job& job,
                                  const tuner::Request& request);

}  // namespace shardwright::cli
