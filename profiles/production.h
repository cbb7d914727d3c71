// SPDX-License-Identifier: Apache-2.0
// The production factor: how many GPU hours a whole training takes for each hour of its ideal
// steps. profiles/data/fitted/whole_runs.json, written by `shardwright_fit whole-runs`.
//
// Failures, restarts, evaluation, checkpoints, stragglers, data, false starts and the distance
// between the plan that was run and the best one: nobody publishes the parts, but teams publish
// tokens and GPU hours. Over published trainings the logarithm of
//
//   GPU hours published / GPU hours of the ideal steps
//
// is one constant and a rest, whose quantile over families left out is the half-width. Slopes for
// the size of the model, the peak of the GPU and experts were tried and predict families left out
// worse than the constant, so there are none; nothing is fitted for one row, team or model.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace shardwright::profiles {

/// A published training as it was fitted.
struct FittedWholeRun {
  std::string id, family;
  double parameters = 0;  // active
  double peak_flops = 0;
  double ideal_gpu_hours = 0;
  double step_half_width = 0;  // of the logarithm; 0: an analytic step
  double published_gpu_hours = 0;
};

struct Coverage {
  std::int64_t n = 0, inside = 0;
  double median_ratio = 0;  // median of |log(predicted / published)|, as a factor
};

struct Production {
  double level = 0.85;  // of the interval
  std::string source, command, date;
  double log_factor = 0;       // of whole over ideal hours
  double half_width = 0;       // of the logarithm, the interval of the step included
  double step_half_width = 0;  // the median of the steps that it was fitted with
  /// Share of the peak that model FLOPs reach in published steps (median): where the planner cannot
  /// express a model, its ideal steps are these.
  double analytic_mfu = 0;
  std::array<double, 2> parameters_range{}, peak_range{};  // of the trainings it was fitted on
  double usual_gpus = 0;                                   // of these trainings, in the middle
  Coverage in_sample, family_out;
  /// Quartiles of 6 N tokens over GPU hours and peak in whole trainings, by generation, and how
  /// many trainings.
  struct Quartiles {
    std::array<double, 3> mfu{};
    std::int64_t n = 0;
  };
  std::map<std::string, Quartiles> reached;
  std::vector<FittedWholeRun> runs;

  /// False for a data folder without the file: then nothing is known beyond the ideal.
  bool known() const { return half_width > 0; }
};

/// Whole hours over ideal ones: the middle, and the half-width of its logarithm together with that
/// of the step's own interval (0: the typical one).
struct ProductionFactor {
  double middle = 1;
  double half_width = 0;
  bool beyond_fit = false;  // a size of model or a peak that no fitted training had
};
ProductionFactor factor_of(const Production& production, double parameters, double peak_flops,
                           double step_half_width);

/// "Volta", "Ampere", "Hopper", "Blackwell" by its 16-bit peak: what `reached` is keyed by.
std::string generation_of(double peak_flops);

std::filesystem::path shipped_production();
/// Throws Error.
Production load_production(const std::filesystem::path& file);
/// The shipped one; of a data folder without that file nothing is known.
Production load_production();
void save_production(const Production& production, const std::filesystem::path& file);

}  // namespace shardwright::profiles
