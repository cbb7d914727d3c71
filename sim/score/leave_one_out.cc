// SPDX-License-Identifier: Apache-2.0
#include "sim/score/leave_one_out.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "sim/core/base/error.h"

namespace shardwright::sim {
namespace {

using profiles::HeldOutRun;

/// Of the logarithm: constants are recorded to four digits, errors to five decimals.
constexpr double kSamePrediction = 2e-3;

[[noreturn]] void fail(const std::string& ledger, const std::string& id, std::string_view why) {
  const std::string command = "python3 -m profiles.research steps";
  throw Error(
      ledger.empty()
          ? fmt::format("the run {} of the ledger that ships {}; '{}' fits without each run and "
                        "records it.",
                        id, why, command)
          : fmt::format("{}: the run {} {}; '{} --ledger {}' fits without each run and records "
                        "it in {}.",
                        ledger, id, why, command, ledger, left_out_file(ledger)));
}

ErrorScore score(const std::vector<const LeftOutRow*>& rows, std::size_t without) {
  std::vector<double> errors;
  for (const LeftOutRow* row : rows) errors.push_back(std::abs(row->error[without]));
  return score_errors(errors);
}

LeaveOneOutScore score(const std::vector<const LeftOutRow*>& rows) {
  LeaveOneOutScore result;
  for (std::size_t without = 0; without < result.time.size(); ++without) {
    result.time[without] = score(rows, without);
  }
  std::map<std::string_view, double> runs_of;
  for (const LeftOutRow* row : rows) ++runs_of[row->cell];
  result.cells = std::ssize(runs_of);
  for (const LeftOutRow* row : rows) {
    const double weight = 1 / (runs_of[row->cell] * static_cast<double>(result.cells));
    for (std::size_t i = 0; i < row->inside.size(); ++i) {
      result.inside[i] += row->inside[i];
      result.cells_inside[i] += row->inside[i] * weight;
    }
  }
  return result;
}

LeftOutRow left_out(const HeldOutRun& run, double measured_s) {
  LeftOutRow row{run.id, run.cell(), measured_s, measured_s * std::exp(run.log_error),
                 {},     run.inside};
  const std::array<double, kHeldOuts> errors = {run.log_error_fitted, run.log_error,
                                                run.log_error_cell_out, run.log_error_source_out};
  std::transform(errors.begin(), errors.end(), row.error.begin(),
                 [](double error) { return std::expm1(error); });
  return row;
}

}  // namespace

std::string left_out_file(const std::string& ledger) {
  return ledger + ".left_out.json";
}

LeaveOneOut leave_one_out(const Validation& validation, const profiles::HeldOutRecord& record,
                          const std::string& ledger) {
  std::map<std::string_view, const HeldOutRun*> recorded;
  for (const HeldOutRun& run : record.runs) recorded[run.id] = &run;
  LeaveOneOut result;
  std::vector<std::string_view> sources;
  for (const ValidatedRow& row : validation.rows) {
    if (!row.time_error || !row.row.suspect.empty()) continue;
    const auto at = recorded.find(row.row.id);
    if (at == recorded.end()) fail(ledger, row.row.id, "was left out of no fit");
    const HeldOutRun& run = *at->second;
    const bool same =
        run.source == row.row.source && run.gpu == row.row.gpu && run.model == row.row.model.name &&
        std::abs(std::log1p(*row.time_error) - run.log_error_fitted) < kSamePrediction;
    if (!same) fail(ledger, row.row.id, "is not the one of that name that was left out of fits");
    result.rows.push_back(left_out(run, *row.row.iteration_s));
    sources.push_back(run.source);
  }
  std::vector<const LeftOutRow*> all;
  std::map<std::string, std::vector<const LeftOutRow*>> by_source;
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    all.push_back(&result.rows[i]);
    by_source[std::string(sources[i])].push_back(&result.rows[i]);
  }
  result.all = score(all);
  for (const auto& [source, rows] : by_source) result.by_source[source] = score(rows);
  return result;
}

}  // namespace shardwright::sim
