// SPDX-License-Identifier: Apache-2.0
// Which cost parameters a GPU takes: its own, or those of the one that its file calls similar.
#pragma once

#include "profiles/gpu_cost.h"
#include "profiles/gpu_file.h"

namespace shardwright::profiles {

/// Throws Error when the file names no GPU that has any.
GpuCost cost_of(const GpuFile& gpu, const GpuCosts& costs);

}  // namespace shardwright::profiles
