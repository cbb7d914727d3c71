// SPDX-License-Identifier: Apache-2.0
// Files between the processes of one user, in places where other users write, too.
//
// Whoever can write into the temporary folder can put a link, a pipe or a file of his own where the
// ranks of somebody else are going to look. So the folder is one that only its owner may enter, new
// files are made (never opened) with a mode that nobody else can read, and what is read must be a
// regular file of this user.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "exec/comm/launch_environment.h"

namespace shardwright::exec {

/// XDG_RUNTIME_DIR where it is this user's alone, else shardwright-UID in the temporary folder,
/// which is made. Throws Error when that is somebody else's or open to others.
std::filesystem::path private_folder(const Environment& environment);

/// A new file of mode 0600 that takes the name in one step; what had it is replaced, never written
/// through. Throws Error.
void write_private_file(const std::filesystem::path& path, const std::string& text);

/// The text of a regular file that belongs to this user and that nobody else can read; else none,
/// and in `why` the reason. Never waits.
std::optional<std::string> read_private_file(const std::filesystem::path& path,
                                             std::size_t most_bytes, std::string& why);

}  // namespace shardwright::exec
