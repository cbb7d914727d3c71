// SPDX-License-Identifier: Apache-2.0
#include "profiles/ledger/ledger_profile.h"

#include <string_view>

#include "profiles/ledger/software_age.h"
#include "profiles/prices/energy.h"
#include "profiles/prices/power_limit.h"

namespace shardwright::profiles {

void apply_circumstances(const LedgerRow& row, const std::vector<std::string>& overrides,
                         Profile& profile) {
  const auto is_set = [&](std::string_view path) { return is_overridden(overrides, path); };
  LowPrecisionParams& low = profile.cost.low_precision.values;
  const double kept = software_age().kept(row);
  if (!is_set("cost.low_precision.fp8_share")) low.fp8_share *= kept;
  if (!is_set("cost.low_precision.nvfp4_share")) low.nvfp4_share *= kept;
  if (!row.power_limit_w) return;
  for (const std::string& lower :
       power_limit_overrides(profile, load_energy(), *row.power_limit_w)) {
    if (!is_set(std::string_view(lower).substr(0, lower.find('=')))) override_value(profile, lower);
  }
}

Profile profile_of(const LedgerRow& row, const StepParameters& parameters,
                   const std::vector<std::string>& overrides) {
  const ClusterFile cluster = cluster_of(row);
  Profile profile = make_profile(cluster, stack_of(row), overrides);
  apply_circumstances(row, overrides, profile);
  apply_source_constants(parameters, cluster.described_by, row.source, overrides, profile);
  return profile;
}

Profile profile_of(const LedgerRow& row, const std::vector<std::string>& overrides) {
  return profile_of(row, load_step_parameters(shipped_step_parameters()), overrides);
}

}  // namespace shardwright::profiles
