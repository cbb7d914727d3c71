// SPDX-License-Identifier: Apache-2.0
// How `validate --leave-one-out` shows honest errors beside those in sample.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/render/text/terminal.h"
#include "profiles/uncertainty/uncertainty.h"
#include "sim/score/leave_one_out.h"

namespace shardwright::cli {

/// Errors by source, four ways, and how far the constants move; with `rows` also every row.
std::string leave_one_out_text(const sim::LeaveOneOut& result,
                               const profiles::HeldOutRecord& record, bool rows,
                               const Terminal& out);

/// What the summary gains: leave_one_out, leave_cell_out, leave_source_out, interval_coverage.
nlohmann::ordered_json leave_one_out_json(const sim::LeaveOneOut& result,
                                          const profiles::HeldOutRecord& record);

}  // namespace shardwright::cli
