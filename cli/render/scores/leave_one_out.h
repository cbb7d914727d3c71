// SPDX-License-Identifier: Apache-2.0
// How `validate --leave-one-out` shows honest errors beside those in sample.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/render/text/terminal.h"
#include "profiles/ledger/ledger.h"
#include "sim/fit/leave_one_out.h"

namespace shardwright::cli {

/// Errors by source, four ways, and how far the constants move; with `rows` also every row.
/// `memory` is the coverage of measured peaks.
std::string leave_one_out_text(const sim::LeaveOneOut& result, const sim::MemoryCoverage& memory,
                               const std::vector<profiles::LedgerRow>& ledger, bool rows,
                               const Terminal& out);

/// What the summary gains: leave_one_out, leave_cell_out, leave_source_out, interval_coverage.
nlohmann::ordered_json leave_one_out_json(const sim::LeaveOneOut& result,
                                          const sim::MemoryCoverage& memory,
                                          const std::vector<profiles::LedgerRow>& ledger);

}  // namespace shardwright::cli
