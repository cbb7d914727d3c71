// SPDX-License-Identifier: Apache-2.0
// The JSON of a step that was measured against the predicted one, for `compare --json` and the
// pages of `report`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/render/text/terminal.h"
#include "sim/trace/trace_comparison.h"

namespace shardwright::cli {

/// The `top` operations that differ most.
std::vector<sim::ComparedOperation> top_operations(const sim::TraceComparison& comparison,
                                                   std::int64_t top);

/// "exposed_by_group", "transfer_by_group" and "waiting_by_group" are in seconds, of a pipeline of
/// the stage that limits; "transfer_s" and "waiting_s" of all groups in the mean of the stages.
/// Null in "bubble", "limiting_stage" and "stages" stands for a trace that has no pipeline.
nlohmann::ordered_json trace_comparison_json(const sim::TraceComparison& comparison,
                                             std::int64_t top);

// What ranks of two traces communicate, group by group: how long nothing else runs, and what of it
// all is the transfer and what waiting.

/// Nothing where neither trace communicates.
std::string compared_communication_text(const sim::TraceComparison& comparison,
                                        const Terminal& out);

// The pipeline of two traces side by side: bubble, what stages do, and which of them limits.

/// Nothing where neither trace has one.
std::string compared_pipeline_text(const sim::TraceComparison& comparison, const Terminal& out);

}  // namespace shardwright::cli
