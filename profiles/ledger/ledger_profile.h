// SPDX-License-Identifier: Apache-2.0
// The profile that a row of the ledger is predicted with: its cluster, its preset of the stack,
// and the constants that only its source is known to have.
#pragma once

#include <string>
#include <vector>

#include "profiles/ledger/ledger.h"
#include "profiles/profile.h"
#include "profiles/step_parameters.h"

namespace shardwright::profiles {

/// What lowers rates in this run alone: a cap of the boards' power, software older than today's.
/// Values that `overrides` set stay. Throws Error about a cap that the GPU cannot have.
void apply_circumstances(const LedgerRow& row, const std::vector<std::string>& overrides,
                         Profile& profile);

/// `overrides` as given to --set win over everything. Throws Error.
Profile profile_of(const LedgerRow& row, const StepParameters& parameters,
                   const std::vector<std::string>& overrides = {});
/// With the parameters that ship.
Profile profile_of(const LedgerRow& row, const std::vector<std::string>& overrides = {});

}  // namespace shardwright::profiles
