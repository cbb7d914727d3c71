// SPDX-License-Identifier: Apache-2.0
// Which software a search goes through: the one that was named, or what is usual for data
// parallelism beside what is usual for plans that divide the model.
#pragma once

#include <optional>
#include <string>

#include "cli/flags/plan_flags.h"
#include "tuner/contest.h"
#include "tuner/space.h"

namespace shardwright::cli {

struct Rivals {
  std::optional<profiles::Profile> plain, divided;  // as tuner::Contestants
  std::string plain_refusal;

  tuner::Contestants contestants(std::optional<double> headroom, std::int64_t gpus) const;
};

/// `job` is resolve_base()'s and `request` what its flags hold fixed. Throws Error where the
/// software that was named cannot do what is held fixed.
Rivals rivals_of(const PlanFlags& flags, const sim::Job& job, const tuner::Request& request);

}  // namespace shardwright::cli
