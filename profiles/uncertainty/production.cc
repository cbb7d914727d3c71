// SPDX-License-Identifier: Apache-2.0
#include "profiles/uncertainty/production.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "profiles/data_file.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/numbers.h"

namespace shardwright::profiles {
namespace {

constexpr std::string_view kProductionSchema = "shardwright.whole_runs/1.1";
constexpr double kWidestLog = 10;  // of a logarithm
constexpr double kSmallJobHours = 3e4;
constexpr double kLargeModel = 4e10;  // parameters
constexpr double kStepLevel = 0.9;    // of the intervals of steps

std::array<double, 2> read_rising_pair(const JsonReader& from, const std::string& name) {
  const std::vector<double> pair = from.require_list<double>(name);
  if (pair.size() != 2 || !(pair[0] > 0 && pair[0] <= pair[1]))
    from.fail(name, "two rising numbers above 0");
  return {pair[0], pair[1]};
}

Coverage read_coverage(const JsonReader& from) {
  from.reject_unknown_keys({"n", "inside", "median_ratio"});
  return {from.require<std::int64_t>("n", at_least(std::int64_t{0})),
          from.require<std::int64_t>("inside", at_least(std::int64_t{0})),
          from.require<double>("median_ratio", at_least(0.0))};
}

void read_reached(const JsonReader& root, Production& result) {
  const JsonReader reached = root.require_object("mfu_reached");
  for (const std::string& name : reached.keys()) {
    const JsonReader entry = reached.require_object(name);
    entry.reject_unknown_keys({"quartiles", "n"});
    const std::vector<double> q = entry.require_list<double>("quartiles");
    if (q.size() != 3) entry.fail("quartiles", "three numbers");
    result.reached[name] = {{q[0], q[1], q[2]},
                            entry.require<std::int64_t>("n", at_least(std::int64_t{1}))};
  }
}

FittedWholeRun read_fitted_run(const JsonReader& from) {
  const NumberRange<double> positive(0.0, 1e30, true);
  FittedWholeRun run;
  run.id = from.require<std::string>("id");
  run.family = from.require<std::string>("family");
  run.parameters = from.require<double>("parameters", positive);
  run.peak_flops = from.require<double>("peak_flops", positive);
  run.ideal_gpu_hours = from.require<double>("ideal_gpu_hours", positive);
  run.step_half_width = from.require<double>("step_half_width", between(0.0, kWidestLog));
  run.published_gpu_hours = from.require<double>("published_gpu_hours", positive);
  return run;
}

}  // namespace

double normal_half_width(double level) {
  double low = 0, high = 10;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (std::erf(middle / std::numbers::sqrt2) < level ? low : high) = middle;
  }
  return low;
}

double small_in_large(double parameters, double ideal_gpu_hours) {
  return std::max(0.0, portable_log(ideal_gpu_hours / kSmallJobHours)) *
         std::max(0.0, portable_log(kLargeModel / parameters));
}

ProductionFactor factor_of(const Production& production, double parameters, double peak_flops,
                           double ideal_gpu_hours, double step_half_width) {
  ProductionFactor factor;
  if (!production.known()) return factor;
  const auto outside = [](double value, const std::array<double, 2>& range) {
    return value < range[0] || value > range[1];
  };
  factor.middle = portable_exp(
      production.log_factor + production.small_model * small_in_large(parameters, ideal_gpu_hours));
  factor.beyond_fit = outside(parameters, production.parameters_range) ||
                      outside(peak_flops, production.peak_range);
  // The fitted width holds the typical step's: that is taken out and the step's own put in. Both
  // are intervals of 90 %, and made ones of the factor's level.
  const double wider = normal_half_width(production.level) / normal_half_width(kStepLevel);
  const double typical = wider * production.step_half_width;
  const double step = step_half_width > 0 ? wider * step_half_width : typical;
  for (std::size_t end = 0; end < 2; ++end) {
    const double width = production.half_widths[end];
    const double squared = width * width - typical * typical + step * step;
    factor.half_widths[end] = std::sqrt(std::max(squared, step * step));
  }
  return factor;
}

double step_half_width_of(const Production& production, double half_width,
                          const AddedWidths& added) {
  if (!production.known() || total_of(added) <= 0) return half_width;
  double squares = production.step_half_width * production.step_half_width;
  for (const WidthAxis axis : {WidthAxis::kGpu, WidthAxis::kFramework, WidthAxis::kHost,
                               WidthAxis::kOrder, WidthAxis::kRetries})
    squares += at(added, axis) * at(added, axis);
  return std::min(half_width, std::sqrt(squares));
}

std::string generation_of(double peak_flops) {
  if (peak_flops < 2e14) return "Volta";
  if (peak_flops < 6e14) return "Ampere";
  return peak_flops < 1.5e15 ? "Hopper" : "Blackwell";
}

std::filesystem::path shipped_production() {
  return data_dir() / "fitted" / "whole_runs.json";
}

Production load_production(const std::filesystem::path& file) {
  const JsonFile document = JsonFile::load(file);
  const JsonReader root = document.root();
  root.require_choice("schema", {kProductionSchema});
  root.reject_unknown_keys({"schema", "source", "command", "date", "level", "log_factor",
                            "small_model", "half_widths", "step_half_width", "analytic_mfu",
                            "ranges", "coverage", "usual_gpus", "mfu_reached", "runs"});
  Production result;
  result.source = root.require<std::string>("source");
  result.command = root.require<std::string>("command");
  result.date = root.require<std::string>("date");
  result.level = root.require<double>("level", between(0.5, 0.999));
  result.log_factor = root.require<double>("log_factor", between(-kWidestLog, kWidestLog));
  result.small_model = root.require<double>("small_model", between(-kWidestLog, kWidestLog));
  const std::vector<double> widths = root.require_list<double>("half_widths");
  if (widths.size() != 2 || !(widths[0] > 0 && widths[1] > 0))
    root.fail("half_widths", "two numbers above 0");
  result.half_widths = {widths[0], widths[1]};
  result.step_half_width = root.require<double>("step_half_width", between(0.0, kWidestLog));
  result.analytic_mfu = root.require<double>("analytic_mfu", NumberRange<double>(0, 1, true));
  const JsonReader ranges = root.require_object("ranges");
  result.parameters_range = read_rising_pair(ranges, "parameters");
  result.peak_range = read_rising_pair(ranges, "peak_flops");
  result.usual_gpus = root.require<double>("usual_gpus", NumberRange<double>(0, 1e9, true));
  const JsonReader coverage = root.require_object("coverage");
  result.in_sample = read_coverage(coverage.require_object("in_sample"));
  result.family_out = read_coverage(coverage.require_object("family_left_out"));
  read_reached(root, result);
  for (const JsonReader& run : root.require_array("runs"))
    result.runs.push_back(read_fitted_run(run));
  return result;
}

Production load_production() {
  const std::filesystem::path file = shipped_production();
  return std::filesystem::exists(file) ? load_production(file) : Production{};
}

}  // namespace shardwright::profiles
