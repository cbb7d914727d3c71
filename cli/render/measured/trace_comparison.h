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

nlohmann::ordered_json trace_comparison_json(const sim::TraceComparison& comparison,
                                             std::int64_t top);

// What ranks of two traces communicate, group by group: how long nothing else runs, and what of it
// all is the transfer and what waiting.

/// Nothing where neither trace communicates.
std::string compared_communication_text(const sim::TraceComparison& comparison,
                                        const Terminal& out);

/// Adds "exposed_by_group", "transfer_by_group" and "waiting_by_group" in seconds, of a pipeline of
/// the stage that limits, and "transfer_s" and "waiting_s", of all groups in the mean of the
/// stages.
void add_compared_communication(const sim::TraceComparison& comparison,
                                nlohmann::ordered_json& document);

/// Adds those by group, of one stage.
void add_communication(const sim::Communication& groups, nlohmann::ordered_json& stage);

// The pipeline of two traces side by side: bubble, what stages do, and which of them limits.

/// Nothing where neither trace has one.
std::string compared_pipeline_text(const sim::TraceComparison& comparison, const Terminal& out);

/// Adds "bubble", "limiting_stage" and "stages"; null stands for a trace that has no pipeline.
void add_compared_pipeline(const sim::TraceComparison& comparison,
                           nlohmann::ordered_json& document);

}  // namespace shardwright::cli
