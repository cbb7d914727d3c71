// SPDX-License-Identifier: Apache-2.0
// Reads the database that `nsys export --type sqlite` writes into tables.
//
// Kernels, copies and sets with their correlation ids, calls of the runtime, and NVTX ranges: those
// of torch.autograd.profiler.emit_nvtx(record_shapes=True) carry operators and shapes as
// "aten::mm, seq = 7, sizes = [[4096, 512], [512, 64]]", without types: operands are taken to be
// bf16, and copies and element-wise operators, whose bytes need types, stay unattributed. NCCL's
// kernels carry no sizes there.
#pragma once

#include <filesystem>

#include "profiles/import/trace_tables.h"

namespace shardwright::profiles {

/// Throws Error when the file is no such database, or with ExitCode::kMissingDevice when this
/// program was built without SQLite.
TraceTables read_nsys(const std::filesystem::path& path);

}  // namespace shardwright::profiles
