// SPDX-License-Identifier: Apache-2.0
// Reads the trace of torch.profiler (Kineto's Chrome JSON) into tables.
//
// Which members and categories are read, and what is assumed of them, is in README.md beside this
// file. Events of other categories are passed over; events that contradict themselves (an end
// before the begin, a kernel without a duration) are counted as left out.
#pragma once

#include <filesystem>

#include "profiles/import/trace_tables.h"

namespace shardwright::profiles {

/// Throws Error when the file cannot be read or holds no event at all.
TraceTables read_kineto(const std::filesystem::path& path);

}  // namespace shardwright::profiles
