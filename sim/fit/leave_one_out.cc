// SPDX-License-Identifier: Apache-2.0
#include "sim/fit/leave_one_out.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "sim/core/worker_pool.h"
#include "sim/doubt/conformal.h"
#include "sim/score/error_summary.h"

namespace shardwright::sim {
namespace {

using profiles::HeldOutRun;

constexpr double kIntervalLevel = 0.9;
constexpr double kRegimeBoundary = 0.1;

void record(const LedgerModel& model, std::size_t i, const std::vector<double>& x, HeldOut without,
            LeftOutRow& row) {
  const TimePrediction time = model.predict(i, values_of(x)).time;
  const auto at = static_cast<std::size_t>(without);
  row.predicted_s[at] = time.iteration_s;
  row.error[at] = time.iteration_s / *model.row(i).iteration_s - 1;
  row.exposed_share[at] = time.exposed_communication_s / time.iteration_s;
}

void widen(std::array<double, 2>& range, double value) {
  range = {std::min(range[0], value), std::max(range[1], value)};
}

ErrorScore score(const std::vector<const LeftOutRow*>& rows, std::size_t without) {
  std::vector<double> errors;
  for (const LeftOutRow* row : rows) errors.push_back(std::abs(row->error[without]));
  const profiles::ErrorSummary summary = summarize_errors(errors);
  return {summary.n, summary.mape, summary.median,
          errors.empty() ? 0 : *std::max_element(errors.begin(), errors.end())};
}

LeaveOneOutScore score(const std::vector<const LeftOutRow*>& rows) {
  LeaveOneOutScore result;
  for (std::size_t without = 0; without < result.time.size(); ++without) {
    result.time[without] = score(rows, without);
  }
  for (const LeftOutRow* row : rows) {
    result.inside += row->inside;
    result.inside_source_out += row->inside_source_out;
  }
  return result;
}

HeldOutRun held_out_run(const profiles::LedgerRow& from, const LeftOutRow& row) {
  const auto log_error = [&](HeldOut without) {
    return std::log1p(row.error[static_cast<std::size_t>(without)]);
  };
  return {from.id,
          from.source,
          from.plan.stack,
          from.gpu,
          row.exposed_share[static_cast<std::size_t>(HeldOut::kRow)],
          log_error(HeldOut::kRow),
          log_error(HeldOut::kSource)};
}

bool covers(const std::vector<HeldOutRun>& others, const HeldOutRun& run, double log_error) {
  const auto same_machine = [&](const HeldOutRun& other) {
    return other.stack == run.stack && other.gpu == run.gpu;
  };
  const profiles::Uncertainty fitted = fit_uncertainty(others, kIntervalLevel, kRegimeBoundary);
  const bool seen = std::any_of(others.begin(), others.end(), same_machine);
  return std::abs(log_error) <= half_width(fitted, run.stack, seen, run.exposed_share);
}

/// Each run judged by an interval that has not seen it, or its source.
void judge_intervals(const std::vector<HeldOutRun>& runs, std::vector<LeftOutRow>& rows) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::vector<HeldOutRun> others, other_sources;
    for (std::size_t k = 0; k < runs.size(); ++k) {
      if (k != i) others.push_back(runs[k]);
      if (runs[k].source != runs[i].source) other_sources.push_back(runs[k]);
    }
    rows[i].inside = covers(others, runs[i], runs[i].log_error);
    rows[i].inside_source_out = covers(other_sources, runs[i], runs[i].log_error_source_out);
  }
}

}  // namespace

LeaveOneOut leave_one_out(const LedgerModel& model, const RobustFit& full,
                          const LeaveOneOutOptions& options) {
  LeaveOneOut result;
  result.interval_level = kIntervalLevel;
  result.rows.resize(model.size());
  const std::vector<double> all_weights = model.weights();
  const std::vector<double> values = values_of(full.x);
  for (std::size_t j = 0; j < values.size(); ++j) {
    result.constants.push_back(
        {model.parameters()[j]->name, values[j], {values[j], values[j]}, {values[j], values[j]}});
  }

  // One thread a fit: the fits are many.
  const RobustProblem problem = model.problem(1);
  std::mutex mutex;
  std::int64_t done = 0;
  for_each_index(model.size(), options.threads, [&](std::size_t i) {
    LeftOutRow& row = result.rows[i];
    row.place = model.places()[i];
    record(model, i, full.x, HeldOut::kNothing, row);
    std::vector<double> weights = all_weights;
    weights[i] = 0;
    const RobustFit fit = fit_robust(problem, weights);
    record(model, i, fit.x, HeldOut::kRow, row);
    const std::lock_guard lock(mutex);
    for (std::size_t j = 0; j < values.size(); ++j) {
      widen(result.constants[j].row_out, std::exp(fit.x[j]));
    }
    result.evaluations += fit.evaluations;
    if (options.progress) options.progress(++done);
  });

  std::map<std::string, std::vector<std::size_t>> sources;
  for (std::size_t i = 0; i < model.size(); ++i) sources[model.row(i).source].push_back(i);
  for (const auto& [source, members] : sources) {
    std::vector<double> weights = all_weights;
    for (const std::size_t i : members) weights[i] = 0;
    const RobustFit fit = fit_robust(model.problem(options.threads), weights);
    for (const std::size_t i : members) record(model, i, fit.x, HeldOut::kSource, result.rows[i]);
    for (std::size_t j = 0; j < values.size(); ++j) {
      widen(result.constants[j].source_out, std::exp(fit.x[j]));
    }
    result.evaluations += fit.evaluations;
  }

  std::vector<const LeftOutRow*> all;
  std::map<std::string, std::vector<const LeftOutRow*>> by_source;
  for (std::size_t i = 0; i < model.size(); ++i) {
    result.runs.push_back(held_out_run(model.row(i), result.rows[i]));
    all.push_back(&result.rows[i]);
    by_source[model.row(i).source].push_back(&result.rows[i]);
  }
  judge_intervals(result.runs, result.rows);
  result.all = score(all);
  for (const auto& [source, rows] : by_source) result.by_source[source] = score(rows);
  return result;
}

}  // namespace shardwright::sim
