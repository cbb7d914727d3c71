// SPDX-License-Identifier: Apache-2.0
#include "tuner/runs/whole_run_score.h"

#include "sim/core/base/portable_math.h"
#include "sim/core/base/quantile.h"

namespace shardwright::tuner {
namespace {

using profiles::Production;
using profiles::WholeRun;

ScoredWholeRun scored(const WholeRun& run, const Production& production, IdealHoursOf& ideal_of) {
  ScoredWholeRun result;
  result.run = run;
  result.skipped = run.not_scorable;
  if (!result.skipped.empty()) return result;
  result.ideal = ideal_of(run);
  const profiles::ProductionFactor factor =
      profiles::factor_of(production, run.parameters, run.peak_flops, result.ideal.gpu_hours,
                          profiles::step_half_width_of(production, result.ideal.step_half_width,
                                                       result.ideal.added_half_widths));
  result.gpu_hours = result.ideal.gpu_hours * factor.middle;
  result.interval_gpu_hours = {result.gpu_hours * portable_exp(-factor.half_widths[0]),
                               result.gpu_hours * portable_exp(factor.half_widths[1])};
  result.inside = run.gpu_hours >= result.interval_gpu_hours[0] &&
                  run.gpu_hours <= result.interval_gpu_hours[1];
  return result;
}

WholeRunSummary summary_of(const std::vector<ScoredWholeRun>& runs) {
  WholeRunSummary summary;
  std::vector<double> ratios, widths;
  for (const ScoredWholeRun& scored : runs) {
    if (!scored.run.scored()) continue;
    ++summary.n;
    summary.inside += scored.inside;
    ratios.push_back(scored.ratio());
    widths.push_back(scored.interval_gpu_hours[1] / scored.interval_gpu_hours[0]);
  }
  if (summary.n == 0) return summary;
  summary.median_ratio = quantile(ratios, 0.5);
  summary.median_width = quantile(widths, 0.5);
  return summary;
}

}  // namespace

WholeRunScore score_whole_runs(const std::vector<WholeRun>& runs, const Production& production,
                               const WholeRunOptions& options) {
  WholeRunScore result;
  IdealHoursOf ideal_of(production.analytic_mfu, options.overrides);
  for (const WholeRun& run : runs) {
    result.runs.push_back(scored(run, production, ideal_of));
    if (options.progress) options.progress(static_cast<std::int64_t>(result.runs.size()));
  }
  result.summary = summary_of(result.runs);
  return result;
}

}  // namespace shardwright::tuner
