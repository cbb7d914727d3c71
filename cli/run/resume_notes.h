// SPDX-License-Identifier: Apache-2.0
// What a resumed run does otherwise than the one that it goes on with: another number of sequences
// in a step, another schedule. Both are allowed, neither should surprise.
#pragma once

#include <string>
#include <vector>

#include "cli/run/options.h"
#include "cli/run/settings.h"
#include "exec/train/checkpoint.h"

namespace shardwright::cli {

/// One sentence each. The earlier run's settings are read from the run.ini beside its checkpoints,
/// as far as there is one.
std::vector<std::string> resume_notes(const RunOptions& options, const RunSettings& settings,
                                      const exec::Checkpoint& resumed);

}  // namespace shardwright::cli
