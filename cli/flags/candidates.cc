// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/candidates.h"

#include <fmt/core.h>

#include "profiles/usual_stack.h"
#include "sim/core/error.h"
#include "sim/core/rack.h"
#include "sim/core/trained_families.h"
#include "sim/uncertainty/headroom.h"

namespace shardwright::cli {
namespace {

constexpr const char* kNative = "native";

profiles::Profile profile_of(const sim::Job& job, const std::string& stack, std::int64_t gpus) {
  profiles::Profile profile =
      profiles::make_profile(job.cluster_file, profiles::load_stack(stack), job.overrides);
  profile.cluster = filled(std::move(profile.cluster), gpus);
  return profile;
}

}  // namespace

tuner::Candidates FrameworkCandidates::candidates(std::optional<double> headroom,
                                                  std::int64_t gpus) const {
  tuner::Candidates result;
  if (plain) result.data_parallel = &*plain;
  result.refusal = plain_refusal;
  if (native) result.native = &*native;
  for (const Parallel& one : parallel) {
    result.parallel.push_back(
        {&one.profile, headroom.value_or(sim::asked_headroom(one.profile, gpus)), one.extent});
  }
  return result;
}

FrameworkCandidates candidates_of(const PlanFlags& flags, const sim::Job& job,
                                  const tuner::Request& request) {
  FrameworkCandidates candidates;
  const profiles::Profile& named = job.profile;
  const ParallelSoftware& software = named.stack.parallel;
  // Who fine-tunes stays in the framework that is usual for it.
  const bool is_named = flags.stack || flags.plan_file || fine_tunes(flags.task, flags.knobs);
  const bool asked = tuner::asks_for_model_parallel(request);
  const bool moe = job.model.is_moe();
  if (asked || moe || software.always) {
    // The engine names what a stack that was named cannot do.
    candidates.parallel.push_back({named});
    if (!is_named && !software.always)
      candidates.parallel.push_back(
          {profile_of(job, profiles::usual_model_parallel_stack(), request.gpus)});
    if (moe && !asked && !software.always)
      candidates.plain_refusal = "its engine predicts no experts";
    return candidates;
  }
  candidates.plain = named;
  if (!is_named && is_trained_family(job.model.family) && named.stack.id != kNative)
    candidates.native = profile_of(job, kNative, request.gpus);
  const bool alone = request.gpus == 1 || named.cluster.devices_per_node > 0;
  if (alone || tuner::asks_for_data_parallel(request)) return candidates;
  if (software.supported) candidates.parallel.push_back({named, tuner::Extent::kModelParallel});
  if (!is_named)
    candidates.parallel.push_back(
        {profile_of(job, profiles::usual_model_parallel_stack(), request.gpus)});
  return candidates;
}

}  // namespace shardwright::cli
