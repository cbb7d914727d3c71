// SPDX-License-Identifier: Apache-2.0
// Published trainings of the very model that is asked about, to stand beside the answer.
#pragma once

#include <vector>

#include "profiles/ledger/whole_runs.h"
#include "sim/core/model.h"

namespace shardwright::tuner {

/// Those of `runs` whose architecture is that of `model`: layers, widths, heads, vocabulary and
/// experts. Trainings whose GPU hours are not published are left out.
std::vector<profiles::WholeRun> trainings_of(const Model& model,
                                             std::vector<profiles::WholeRun> runs);

}  // namespace shardwright::tuner
