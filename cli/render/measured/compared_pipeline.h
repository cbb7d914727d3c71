// SPDX-License-Identifier: Apache-2.0
// The pipeline of two traces side by side: bubble, what stages do, and which of them limits.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/render/text/terminal.h"
#include "sim/trace/trace_comparison.h"

namespace shardwright::cli {

/// Nothing where neither trace has one.
std::string compared_pipeline_text(const sim::TraceComparison& comparison, const Terminal& out);

/// Adds "bubble", "limiting_stage" and "stages"; null stands for a trace that has no pipeline.
void add_compared_pipeline(const sim::TraceComparison& comparison,
                           nlohmann::ordered_json& document);

}  // namespace shardwright::cli
