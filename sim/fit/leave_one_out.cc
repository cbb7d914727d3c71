// SPDX-License-Identifier: Apache-2.0
#include "sim/fit/leave_one_out.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "sim/core/base/worker_pool.h"
#include "sim/score/error_summary.h"
#include "sim/uncertainty/conformal.h"

namespace shardwright::sim {
namespace {

using profiles::HeldOutRun;

constexpr double kIntervalLevel = 0.9;

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
  std::map<std::string_view, double> runs_of;
  for (const LeftOutRow* row : rows) ++runs_of[row->cell];
  result.cells = std::ssize(runs_of);
  for (const LeftOutRow* row : rows) {
    result.inside += row->inside;
    result.inside_cell_out += row->inside_cell_out;
    result.inside_source_out += row->inside_source_out;
    const std::array<bool, 3> inside{row->inside, row->inside_cell_out, row->inside_source_out};
    const double weight = 1 / (runs_of[row->cell] * static_cast<double>(result.cells));
    for (std::size_t i = 0; i < inside.size(); ++i) result.cells_inside[i] += inside[i] * weight;
  }
  return result;
}

HeldOutRun held_out_run(const profiles::LedgerRow& from, const LeftOutRow& row) {
  const auto log_error = [&](HeldOut without) {
    return std::log1p(row.error[static_cast<std::size_t>(without)]);
  };
  HeldOutRun run;
  run.id = from.id;
  run.source = from.source;
  run.stack = from.plan.stack;
  run.gpu = from.gpu;
  run.model = from.model.name;
  run.exposed_share = row.exposed_share[static_cast<std::size_t>(HeldOut::kRow)];
  run.log_error = log_error(HeldOut::kRow);
  run.log_error_cell_out = log_error(HeldOut::kCell);
  run.log_error_source_out = log_error(HeldOut::kSource);
  return run;
}

std::string_view chip_of(const Chips& chips, const std::string& gpu) {
  const auto at = chips.find(gpu);
  return at == chips.end() ? std::string_view(gpu) : std::string_view(at->second);
}

profiles::Novelty novelty_among(const std::vector<HeldOutRun>& others, const HeldOutRun& run,
                                const Chips& chips) {
  profiles::Uncertainty known;
  const auto add = [&](const char* kind, std::string word) {
    known.seen[kind].push_back(std::move(word));
  };
  std::set<std::string> cells;
  bool source = false;
  for (const HeldOutRun& other : others) {
    cells.insert(other.cell() + " | " + other.stack);
    source = source || other.source == run.source;
    add("gpu", chip_of(chips, other.gpu) == chip_of(chips, run.gpu) ? run.gpu : other.gpu);
    add("source", other.source);
  }
  known.seen["cell"] = {cells.begin(), cells.end()};
  const profiles::Novelty novelty = novelty_of(known, run.source, run.stack, run.gpu, run.model);
  return source ? novelty : std::max(novelty, profiles::Novelty::kSourceOnly);
}

bool covers(const std::vector<HeldOutRun>& others, const HeldOutRun& run, const Chips& chips,
            double log_error) {
  const profiles::Uncertainty fitted = fit_uncertainty(others, kIntervalLevel, chips);
  return std::abs(log_error) <= half_width(fitted, novelty_among(others, run, chips));
}

/// Each run judged by an interval that has not seen it, its cell, or its source.
void judge_intervals(const std::vector<HeldOutRun>& runs, const Chips& chips,
                     std::vector<LeftOutRow>& rows) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::vector<HeldOutRun> others, other_cells, other_sources;
    for (std::size_t k = 0; k < runs.size(); ++k) {
      if (k != i) others.push_back(runs[k]);
      if (runs[k].cell() != runs[i].cell()) other_cells.push_back(runs[k]);
      if (runs[k].source != runs[i].source) other_sources.push_back(runs[k]);
    }
    rows[i].cell = runs[i].cell();
    rows[i].inside = covers(others, runs[i], chips, runs[i].log_error);
    rows[i].inside_cell_out = covers(other_cells, runs[i], chips, runs[i].log_error_cell_out);
    rows[i].inside_source_out = covers(other_sources, runs[i], chips, runs[i].log_error_source_out);
  }
}

std::map<std::string, std::vector<std::size_t>> groups_of(
    const LedgerModel& model, const std::function<std::string(const profiles::LedgerRow&)>& key) {
  std::map<std::string, std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < model.size(); ++i) groups[key(model.row(i))].push_back(i);
  return groups;
}

}  // namespace

Chips chips_of(const LedgerModel& model) {
  Chips chips;
  for (const profiles::StepParameter* parameter : model.parameters()) {
    const bool is_clock = std::any_of(
        parameter->targets.begin(), parameter->targets.end(),
        [](const profiles::StepTarget& t) { return t.path == "cost.gemm.sustained_factor"; });
    if (!is_clock || !parameter->sources.empty()) continue;
    for (const std::string& gpu : parameter->applies_to) {
      chips.try_emplace(gpu, parameter->applies_to.front());
    }
  }
  return chips;
}

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
    const RobustFit fit = refit_robust(problem, weights, full);
    record(model, i, fit.x, HeldOut::kRow, row);
    const std::lock_guard lock(mutex);
    for (std::size_t j = 0; j < values.size(); ++j) {
      widen(result.constants[j].row_out, std::exp(fit.x[j]));
    }
    result.evaluations += fit.evaluations;
    if (options.progress) options.progress(++done);
  });

  const auto leave_out = [&](HeldOut what, const auto& key) {
    std::vector<std::vector<std::size_t>> groups;
    for (auto& [name, members] : groups_of(model, key)) groups.push_back(std::move(members));
    for_each_index(groups.size(), options.threads, [&](std::size_t g) {
      std::vector<double> weights = all_weights;
      for (const std::size_t i : groups[g]) weights[i] = 0;
      const RobustFit fit = refit_robust(problem, weights, full);
      for (const std::size_t i : groups[g]) record(model, i, fit.x, what, result.rows[i]);
      const std::lock_guard lock(mutex);
      for (std::size_t j = 0; what == HeldOut::kSource && j < values.size(); ++j) {
        widen(result.constants[j].source_out, std::exp(fit.x[j]));
      }
      result.evaluations += fit.evaluations;
    });
  };
  leave_out(HeldOut::kCell, [](const profiles::LedgerRow& row) {
    return row.source + '|' + row.gpu + '|' + row.model.name;
  });
  leave_out(HeldOut::kSource, [](const profiles::LedgerRow& row) { return row.source; });

  std::vector<const LeftOutRow*> all;
  std::map<std::string, std::vector<const LeftOutRow*>> by_source;
  for (std::size_t i = 0; i < model.size(); ++i) {
    result.runs.push_back(held_out_run(model.row(i), result.rows[i]));
    all.push_back(&result.rows[i]);
    by_source[model.row(i).source].push_back(&result.rows[i]);
  }
  judge_intervals(result.runs, chips_of(model), result.rows);
  result.simulated_coverage = simulated_coverage(result.runs, kIntervalLevel);
  result.all = score(all);
  for (const auto& [source, rows] : by_source) result.by_source[source] = score(rows);
  return result;
}

}  // namespace shardwright::sim
