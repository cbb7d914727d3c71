// SPDX-License-Identifier: Apache-2.0
// Whether the ranks that write checkpoints see one folder, before the first step and before a
// checkpoint takes its name. Ranks of another node that write to a disk of their own would leave
// checkpoints that nobody can read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "exec/communicator.h"
#include "exec/train/checkpoint.h"

namespace shardwright::exec {

/// How long what another node wrote may take to be seen: caches of network file systems.
inline constexpr double kFolderPatience_s = 10;

/// How the files begin by which ranks find out; one stays when a run is killed meanwhile.
inline constexpr std::string_view kSharedProbe = ".shared-";

/// Waits until every file of the manifest is in `folder` with its size. Throws Error naming the
/// first that is not after `patience_s`.
void require_files(const std::filesystem::path& folder, const CheckpointManifest& manifest,
                   double patience_s = kFolderPatience_s);

/// All ranks call it together, after rank 0 has made `folder`; the `writers` need it.
/// Throws Error on every rank when one of them does not see what rank 0 writes there.
void require_shared_folder(Communicator& world, const std::filesystem::path& folder,
                           std::span<const std::int64_t> writers,
                           double patience_s = kFolderPatience_s);

}  // namespace shardwright::exec
