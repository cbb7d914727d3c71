// SPDX-License-Identifier: Apache-2.0
#include "tuner/search/robustness.h"

#include <fmt/format.h>

#include <utility>

#include "profiles/fields.h"

namespace shardwright::tuner {

namespace {

constexpr double kNoticeable = 0.01;

}  // namespace

bool Robustness::flips(std::size_t plan, std::size_t in_case, double behind) const {
  const Stress& stressed = stress[plan][in_case];
  return !stressed.fits || stressed.behind > behind + kNoticeable;
}

Robustness robustness_of(const Search& search, std::size_t framework,
                         const std::vector<Scenario>& cases, SearchOptions options,
                         const std::vector<Plan>& plans) {
  options.progress = nullptr;
  Robustness result;
  result.stress.resize(plans.size());
  for (const Scenario& scenario : cases) {
    Search again(search, framework, scenario, options);
    std::vector<Found> best = again.best(1);
    const std::vector<Judgement> judgements = again.judge(plans);
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const Judgement& judgement = judgements[i];
      result.stress[i].push_back({judgement.fits, judgement.thrashes, judgement.excess_bytes,
                                  judgement.score,
                                  best.empty() ? 0 : judgement.score / best.front().score - 1});
    }
    Robustness::Case& kept = result.cases.emplace_back();
    kept.scenario = scenario.name;
    if (!best.empty()) kept.best = std::move(best.front());
  }
  return result;
}

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
