// SPDX-License-Identifier: Apache-2.0
// What a resumed run does otherwise than the one that it goes on with: another number of sequences
// in a step, another schedule, sums in another order. All are allowed, none should surprise.
#pragma once

#include <string>
#include <vector>

#include "cli/run/options.h"
#include "exec/train/checkpoint.h"

namespace shardwright::cli {

/// Where nothing says which parts sums over features have, they keep those of the checkpoint if the
/// plan can have them, so that a run goes on with equal bits at any number of tensor ranks. Whether
/// the plan changed; a note of `options` says so.
bool keep_sum_shape(RunOptions& options, const exec::Checkpoint& resumed);

/// One sentence each.
std::vector<std::string> resume_notes(const RunOptions& options, const exec::Checkpoint& resumed);

}  // namespace shardwright::cli
