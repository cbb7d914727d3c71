// SPDX-License-Identifier: Apache-2.0
// Where the shipped data files are: GPUs, clusters, stacks, models, published measurements.
//
// The first of these that applies, so that the same binary works installed, moved, and in a build
// tree:
//   1. the environment variable SHARDWRIGHT_DATA;
//   2. the folder that a library says it ships with (a Python module);
//   3. ../share/shardwright/profiles beside the folder of the running executable (an installation,
//   a
//      build tree), unless somebody else put it there;
//   4. what was installed under the prefix of this build.
#pragma once

#include <filesystem>

namespace shardwright::profiles {

/// Of a library: the folder that ships beside it. To be said before the first thread asks for it.
void set_shipped_data_dir(std::filesystem::path folder);

/// Whether the folder is root's, this user's, or of whoever owns the program. Figures of anybody
/// else are not taken unasked, as where the program was copied to a place that all may write to.
bool is_trusted_folder(const std::filesystem::path& path);

/// An existing folder. Throws Error when SHARDWRIGHT_DATA names none, or when no place has it.
std::filesystem::path data_dir();

}  // namespace shardwright::profiles
