// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/candidates.h"

#include <fmt/core.h>

#include "profiles/ledger/ledger_profile.h"
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "sim/core/executed_plan.h"
#include "sim/core/layout.h"
#include "sim/uncertainty/intervals.h"

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

tuner::Frameworks FrameworkCandidates::frameworks(std::optional<double> headroom,
                                                  std::int64_t gpus) const {
  tuner::Frameworks result;
  for (const profiles::Profile& one : searched)
    result.searched.push_back({&one, headroom.value_or(sim::asked_headroom(one, gpus))});
  result.refusal = refusal;
  if (native) result.native = &*native;
  return result;
}

FrameworkCandidates candidates_of(const PlanFlags& flags, const sim::Job& job,
                                  const tuner::Request& request) {
  FrameworkCandidates candidates;
  const profiles::Profile& named = job.profile;
  candidates.searched.push_back(named);
  // Who fine-tunes stays in the framework that is usual for it.
  const bool is_named = flags.stack || flags.plan_file || named.stack.optimizer.bucketed ||
                        fine_tunes(flags.task, flags.knobs);
  const bool asked = tuner::features_of(request).any();
  const bool moe = job.model.is_moe();
  const bool alone = request.gpus == 1 || named.cluster.devices_per_node > 0;
  if (!is_named && (asked || moe || !(alone || tuner::holds_sharding(request)))) {
    candidates.searched.push_back(
        profile_of(job, profiles::usual_model_parallel_stack(), request.gpus));
  }
  if (moe && !asked && !named.stack.optimizer.bucketed && !fine_tunes(flags.task, flags.knobs))
    candidates.refusal = "its engine predicts no experts";
  if (!is_named && !asked && !moe && is_trained_family(job.model.family) &&
      named.stack.id != kNative) {
    candidates.native = profile_of(job, kNative, request.gpus);
  }
  return candidates;
}

}  // namespace shardwright::cli
