// SPDX-License-Identifier: Apache-2.0
#include "profiles/ledger/ledger_profile.h"

namespace shardwright::profiles {

Profile profile_of(const LedgerRow& row, const StepParameters& parameters,
                   const std::vector<std::string>& overrides) {
  const ClusterFile cluster = cluster_of(row);
  Profile profile = make_profile(cluster, stack_of(row), overrides);
  apply_source_constants(parameters, cluster.described_by, row.source, overrides, profile);
  return profile;
}

Profile profile_of(const LedgerRow& row, const std::vector<std::string>& overrides) {
  return profile_of(row, load_step_parameters(shipped_step_parameters()), overrides);
}

}  // namespace shardwright::profiles
