// SPDX-License-Identifier: Apache-2.0
// Where the shipped data files are: GPUs, clusters, stacks, models, published measurements.
//
// The first of these that applies, so that the same binary works installed, moved, and in a build
// tree:
//   1. the environment variable SHARDWRIGHT_DATA;
//   2. the folder that a library says it ships with (a Python module);
//   3. ../share/shardwright/profiles beside the folder of the running executable (an installation);
//   4. profiles/data of the source tree of this build, else what was installed under its prefix.
#pragma once

#include <filesystem>

namespace shardwright::profiles {

/// Of a library: the folder that ships beside it. To be said before the first thread asks for it.
void set_shipped_data_dir(std::filesystem::path folder);

/// An existing folder. Throws Error when SHARDWRIGHT_DATA names none, or when no place has it.
std::filesystem::path data_dir();

}  // namespace shardwright::profiles
