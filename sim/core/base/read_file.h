// SPDX-License-Identifier: Apache-2.0
// Reading a whole input file into memory, with a bound on its size.
//
// Every loader starts here, so that a missing file, a folder in its place or a file of the wrong
// kind (a 30 GB checkpoint given as a config) gives one clear sentence instead of a crash. Pipes
// and /dev/stdin work too: the bound holds while reading, not only by the size that the folder
// shows. A pipe that nobody writes to, as a stranger's folder may hold one under any name, is
// refused instead of waited for.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace shardwright {

/// From now on nothing is read that does not lie below one of these folders, wherever links lead;
/// none: anything may be. To be called before the first thread that reads.
void restrict_reading(const std::vector<std::filesystem::path>& folders);

/// Throws Error when the file may not be read (restrict_reading). `fd` is the file, opened, or -1
/// when only its name is known yet.
void require_readable(const std::filesystem::path& path, int fd);

/// The bytes of `path`. Throws Error that names the file when it cannot be read or holds more than
/// `max_bytes`.
std::string read_file(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace shardwright
