// SPDX-License-Identifier: Apache-2.0
#include "tuner/advice/scenarios.h"

#include <fmt/format.h>

#include <utility>

#include "profiles/fields.h"

namespace shardwright::tuner {

namespace {

Scenario memory_above(const profiles::Profile& profile, double share) {
  return {fmt::format("memory {:.0f} % above", 100 * share), profile, 1 + share,
          physics_of(profile)};
}

/// NCCL goes on choosing what it chooses; what it chose runs slower.
Scenario bandwidth_below(const profiles::Profile& profile, double share) {
  Scenario scenario{fmt::format("bandwidth {:.0f} % below", 100 * share), profile};
  profiles::CollectiveParams& params = scenario.profile.cost.collectives.values;
  for (auto* protocol : {&params.ll, &params.ll128, &params.simple, &params.nvls_simple})
    protocol->bytes_per_s *= 1 - share;
  profiles::DispatchParams& dispatch = scenario.profile.cost.dispatch.values;
  for (double* rate : {&scenario.profile.cost.exchange.values.bytes_per_s,
                       &dispatch.link_bytes_per_s, &dispatch.sm_bytes_per_s})
    *rate *= 1 - share;
  scenario.profile.cluster.intra_link_bytes_per_s *= 1 - share;
  scenario.profile.cluster.nic_bytes_per_s *= 1 - share;
  return scenario;
}

}  // namespace

Scenario as_predicted(const profiles::Profile& profile) {
  return {"as predicted", profile, 1, physics_of(profile)};
}

std::string physics_of(profiles::Profile profile) {
  std::string text = profile.stack.id + " " + profile.cluster.gpu.id;
  const profiles::FieldList fields = profiles::fields_of(profile);
  for (const profiles::Field& field : fields.fields())
    text.append(" ").append(profiles::json_text(field));
  return text;
}

std::vector<Scenario> adverse_scenarios(const profiles::Profile& profile) {
  return {memory_above(profile, kMemoryAbove), bandwidth_below(profile, kBandwidthBelow)};
}

std::vector<Scenario> scenarios_of(const profiles::Profile& profile, bool robust) {
  std::vector<Scenario> scenarios{as_predicted(profile)};
  if (!robust) return scenarios;
  for (Scenario& adverse : adverse_scenarios(profile)) scenarios.push_back(std::move(adverse));
  return scenarios;
}

}  // namespace shardwright::tuner
