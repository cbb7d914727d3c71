// SPDX-License-Identifier: Apache-2.0
// Judges laws of the critical batch by the batches of published trainings.
#pragma once

#include <vector>

#include "profiles/batch_laws.h"
#include "profiles/ledger/whole_runs.h"

namespace shardwright::tuner {

/// Every law with what the trainings say of it, and the one that ships: it calls the fewest
/// published batches beyond critical and, of equal ones, has the least scatter. Throws Error where
/// no training has a batch and an architecture.
profiles::CriticalBatch judge_batch_laws(std::vector<profiles::BatchLaw> laws,
                                         const std::vector<profiles::WholeRun>& runs);

}  // namespace shardwright::tuner
