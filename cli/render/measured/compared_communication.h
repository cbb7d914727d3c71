// SPDX-License-Identifier: Apache-2.0
// What ranks of two traces communicate, group by group: how long nothing else runs, and what of it
// all is the transfer and what waiting.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/render/text/terminal.h"
#include "sim/trace/trace_comparison.h"

namespace shardwright::cli {

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

}  // namespace shardwright::cli
