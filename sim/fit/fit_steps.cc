// SPDX-License-Identifier: Apache-2.0
#include "sim/fit/fit_steps.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "sim/core/base/parse_number.h"
#include "sim/core/base/worker_pool.h"
#include "sim/fit/held_out.h"
#include "sim/score/error_summary.h"
#include "sim/score/validation.h"
#include "sim/uncertainty/conformal.h"
#include "sim/uncertainty/extrapolation.h"
#include "sim/uncertainty/memory_uncertainty.h"

namespace shardwright::sim {
namespace {

constexpr std::uint32_t kGroups = 20;
/// Student's t, 95 %, with kGroups - 1 degrees of freedom: an interval at level 0.9.
constexpr double kStudent = 1.729;
constexpr double kLevel = 0.9;

std::uint32_t ledger_group_of(const profiles::LedgerRow& row) {
  const Plan& p = row.plan;
  return fold_of({static_cast<std::int64_t>(p.strategy), p.gpus, p.seq_len, p.micro_batch,
                  p.grad_accum, p.ckpt_layers, row.model.layers, row.model.hidden},
                 kGroups);
}

/// Standard errors of x from fits that each leave out one group of rows.
std::vector<double> jackknife(const LedgerModel& model, const RobustFit& full, unsigned threads) {
  const std::vector<double> all_weights = model.weights();
  const RobustProblem problem = model.problem(1);
  std::vector<std::vector<double>> fits(kGroups);
  for_each_index(kGroups, threads, [&](std::size_t group) {
    std::vector<double> weights = all_weights;
    for (std::size_t i = 0; i < model.size(); ++i) {
      if (ledger_group_of(model.row(i)) == group) weights[i] = 0;
    }
    fits[group] = refit_robust(problem, weights, full).x;
  });
  std::vector<double> errors;
  for (std::size_t j = 0; j < model.parameters().size(); ++j) {
    double mean = 0, squares = 0;
    for (const auto& x : fits) mean += x[j] / kGroups;
    for (const auto& x : fits) squares += std::pow(x[j] - mean, 2);
    errors.push_back(std::sqrt(squares * (kGroups - 1) / kGroups));
  }
  return errors;
}

profiles::ErrorSummary errors_of(const std::vector<LeftOutRow>& rows, HeldOut without,
                                 const std::function<bool(std::size_t)>& belongs) {
  std::vector<double> errors;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (belongs(i)) errors.push_back(std::abs(rows[i].error[static_cast<std::size_t>(without)]));
  }
  profiles::ErrorSummary summary = summarize_errors(errors);
  for (double* value : {&summary.mape, &summary.median, &summary.p90}) {
    *value = std::round(*value * 1e5) / 1e5;
  }
  return summary;
}

void fit_memory(const std::vector<profiles::LedgerRow>& rows, profiles::Uncertainty& uncertainty) {
  const std::vector<PeakError> errors = peak_errors(validate(rows));
  std::set<std::string> sources;
  for (const PeakError& error : errors) {
    sources.insert(error.source);
    add_measured_software(uncertainty, error.stack);
  }
  uncertainty.memory_runs = static_cast<std::int64_t>(errors.size());
  uncertainty.memory_sources = static_cast<std::int64_t>(sources.size());
  uncertainty.memory = widths_of_runs(errors, kLevel);
  uncertainty.memory_of_others = widths_of_sources(errors, kLevel);
}

}  // namespace

FittedSteps fit_steps(const std::vector<profiles::LedgerRow>& rows,
                      profiles::StepParameters parameters, const FitStepsOptions& options) {
  FittedSteps result;
  const LedgerModel model(rows, parameters.parameters);
  const RobustProblem problem = model.problem(options.loop.threads);
  const std::vector<double> weights = model.weights();
  const RobustFit full = fit_robust(problem, weights);
  const std::vector<double> resolved = standard_errors(problem, weights, full);
  const std::vector<double> jackknifed = jackknife(model, full, options.loop.threads);
  result.leave_one_out = leave_one_out(model, full, options.loop);

  const std::vector<LeftOutRow>& left_out = result.leave_one_out.rows;
  for (profiles::StepParameter& p : parameters.parameters) {
    p.fitted.reset();
    const auto at = std::find(model.parameters().begin(), model.parameters().end(), &p);
    if (at == model.parameters().end()) continue;
    const auto j = static_cast<std::size_t>(at - model.parameters().begin());
    const double margin = kStudent * std::max(resolved[j], jackknifed[j]);
    const auto bounded = [&](double log) {
      return rounded(std::clamp(std::exp(log), p.min, p.max), 4);
    };
    const auto seen = [&](std::size_t i) { return model.sees(i, j); };
    p.fitted = {bounded(full.x[j]),
                {bounded(full.x[j] - margin), bounded(full.x[j] + margin)},
                errors_of(left_out, HeldOut::kNothing, seen),
                errors_of(left_out, HeldOut::kRow, seen)};
  }
  const auto any = [](std::size_t) { return true; };
  parameters.source = "iteration times of published/ledger.csv";
  parameters.command = "shardwright_fit steps";
  parameters.date = options.date;
  parameters.interval_level = kLevel;
  parameters.in_sample = errors_of(left_out, HeldOut::kNothing, any);
  parameters.held_out = errors_of(left_out, HeldOut::kRow, any);
  parameters.source_held_out = errors_of(left_out, HeldOut::kSource, any);

  result.uncertainty = fit_uncertainty(result.leave_one_out.runs, kLevel, chips_of(model));
  result.uncertainty.source = parameters.source + ", each predicted by constants fitted without it";
  result.uncertainty.command = parameters.command;
  result.uncertainty.date = options.date;
  for (std::size_t i = 0; i < model.size(); ++i) {
    const profiles::LedgerRow& row = model.row(i);
    add_run(result.uncertainty, row.model, profiles::cluster_of(row).cluster, row.plan.stack,
            row.plan, row.source);
  }
  fit_memory(rows, result.uncertainty);
  result.parameters = std::move(parameters);
  return result;
}

}  // namespace shardwright::sim
