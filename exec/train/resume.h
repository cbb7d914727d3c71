// SPDX-License-Identifier: Apache-2.0
// Which checkpoint a run goes on from, decided by all ranks together.
//
// Checksums are of whole files, so the ranks share the files: each byte of a checkpoint is read
// once for its checksum, by the rank that wrote it where there are as many ranks as then. A
// checkpoint that any of them finds damaged is left out by all.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "exec/communicator.h"
#include "exec/train/checkpoint.h"

namespace shardwright::exec {

/// The first of `candidates` that every rank can open and whose checksums are right. All ranks
/// call it together with what each of them found. `note` hears, on rank 0, why one was left out.
/// Null when there is none to choose from. Throws Error on every rank when none is whole, when
/// ranks see different checkpoints, or when memory for reading one is short.
std::unique_ptr<Checkpoint> choose_checkpoint(Communicator& world,
                                              const std::vector<std::filesystem::path>& candidates,
                                              const std::function<void(const std::string&)>& note);

}  // namespace shardwright::exec
