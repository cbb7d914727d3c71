// SPDX-License-Identifier: Apache-2.0
// Where the shipped data files are: GPUs, clusters, stacks, models, published measurements.
//
// The first of these that applies, so that the same binary works installed, moved, and in a build
// tree:
//   1. the environment variable SHARDWRIGHT_DATA;
//   2. ../share/shardwright/profiles beside the folder of the running executable (an installation);
//   3. profiles/data of the source tree that this was compiled from (a build tree, the tests).
#pragma once

#include <filesystem>

namespace shardwright::profiles {

/// An existing folder. Throws Error when SHARDWRIGHT_DATA names none, or when no place has it.
std::filesystem::path data_dir();

}  // namespace shardwright::profiles
