// SPDX-License-Identifier: Apache-2.0
// The JSON of a step that was measured against the predicted one, for `compare --json` and the
// pages of `report`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "sim/trace/trace_comparison.h"

namespace shardwright::cli {

/// The `top` operations that differ most.
std::vector<sim::ComparedOperation> top_operations(const sim::TraceComparison& comparison,
                                                   std::int64_t top);

nlohmann::ordered_json trace_comparison_json(const sim::TraceComparison& comparison,
                                             std::int64_t top);

}  // namespace shardwright::cli
