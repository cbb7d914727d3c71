// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/rivals.h"

#include <fmt/core.h>

#include "profiles/usual_stack.h"
#include "sim/core/error.h"
#include "sim/core/rack.h"
#include "sim/doubt/headroom.h"
#include "tuner/divided_space.h"

namespace shardwright::cli {
namespace {

profiles::Profile dividing_profile(const sim::Job& job, std::int64_t gpus) {
  profiles::Profile profile = profiles::make_profile(
      job.cluster_file, profiles::load_stack(profiles::usual_dividing_stack()), job.overrides);
  profile.cluster = filled(std::move(profile.cluster), gpus);
  return profile;
}

}  // namespace

tuner::Contestants Rivals::contestants(std::optional<double> headroom, std::int64_t gpus) const {
  tuner::Contestants result;
  if (plain) result.plain = &*plain;
  result.plain_refusal = plain_refusal;
  if (!divided) return result;
  result.divided = &*divided;
  result.divided_headroom = headroom.value_or(sim::asked_headroom(*divided, gpus));
  return result;
}

Rivals rivals_of(const PlanFlags& flags, const sim::Job& job, const tuner::Request& request) {
  Rivals rivals;
  const profiles::Profile& named = job.profile;
  const ParallelSoftware& software = named.stack.parallel;
  const bool is_named = flags.stack || flags.plan_file;
  const bool asked = tuner::asks_for_division(request);
  const bool mixture = job.model.is_mixture();
  if (asked || mixture || software.always) {
    // The engine names what a stack that was named cannot do.
    rivals.divided = is_named || software.always ? named : dividing_profile(job, request.gpus);
    if (mixture && !asked && !software.always)
      rivals.plain_refusal = "its engine predicts no experts";
    return rivals;
  }
  rivals.plain = named;
  const bool alone = request.gpus == 1 || named.cluster.devices_per_node > 0;
  if (alone || tuner::asks_for_plain(request)) return rivals;
  if (is_named && software.supported) rivals.divided = named;
  if (!is_named) rivals.divided = dividing_profile(job, request.gpus);
  return rivals;
}

}  // namespace shardwright::cli
