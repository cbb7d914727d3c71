// SPDX-License-Identifier: Apache-2.0
// What of a run all ranks must have alike, what of that may be another when it goes on from a
// checkpoint, and what is said then.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/run/options.h"
#include "cli/run/settings.h"
#include "exec/communicator.h"
#include "exec/train/checkpoint.h"

namespace shardwright::cli {

/// Where what can be made again is kept; empty: nowhere.
std::filesystem::path cache_folder(const char* name);

/// Decides them in the options, once everything else is decided; reads the training data once.
/// Null: nothing is trained on.
void decide_job(RunOptions& options, const RunSettings& settings, const exec::Data* data);

/// What every transport does before it makes groups.
exec::OnWorld agreement(const RunOptions& options);

/// Throws Error naming each key of the model that differs from the checkpoint's, or training data
/// that do. To be asked once the job is decided.
void require_same_job(const RunOptions& options, const exec::Checkpoint& resumed);

/// One sentence for every other key that differs and changes what is computed.
std::vector<std::string> moved_facts(const RunOptions& options, const exec::Checkpoint& resumed);

// What a resumed run does otherwise than the one that it goes on with: another number of sequences
// in a step, another schedule, sums in another order. All are allowed, none should surprise.

/// Where nothing says which parts sums over features have, they keep those of the checkpoint if the
/// plan can have them, so that a run goes on with equal bits at any number of tensor ranks. Whether
/// the plan changed; a note of `options` says so.
bool keep_sum_shape(RunOptions& options, const exec::Checkpoint& resumed);

/// One sentence each.
std::vector<std::string> resume_notes(const RunOptions& options, const exec::Checkpoint& resumed);

}  // namespace shardwright::cli
