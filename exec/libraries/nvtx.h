// SPDX-License-Identifier: Apache-2.0
// Ranges of NVTX, which Nsight Systems shows. Without a profiler they cost some nanoseconds each.
#pragma once

#include <memory>

#include "exec/range_marker.h"

namespace shardwright::exec::libraries {

std::unique_ptr<RangeMarker> make_nvtx_marker();

}  // namespace shardwright::exec::libraries
