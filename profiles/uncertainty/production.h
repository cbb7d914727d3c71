// SPDX-License-Identifier: Apache-2.0
// The production factor: how many GPU hours a training run takes for each hour of its ideal
// steps. profiles/data/fitted/whole_runs.json, written by `python3 -m profiles.research
// whole-runs`.
//
// Failures, restarts, evaluation, checkpoints, stragglers, data, false starts and the distance
// between the plan that was run and the best one: nobody publishes the parts, but teams publish
// tokens and GPU hours. Over published trainings the logarithm of
//
//   GPU hours published / GPU hours of the ideal steps
//
// is a constant, more for small models in large jobs, and a rest:
//
//   log_factor + small_model x max(0, ln(ideal hours / 30,000)) x max(0, ln(40e9 / parameters))
//
// A small model that is trained for many GPU hours is trained on many GPUs, and on each little is
// left to do. That term predicts families left out better than the constant does; the size of the
// model, the tokens, the hours, the peak of the GPU and the year alone predict them worse.
// Trainings before 2023 took longer (gpt-neox-20b apart) and are scored, not fitted. The interval
// is the shortest that holds the level of the rests of families left out, so its ends differ.
// Nothing is fitted for one row, team or model.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "profiles/uncertainty/uncertainty.h"

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
  double log_factor = 0;                // of whole over ideal hours, of a large model
  double small_model = 0;               // slope of what small models in large jobs take more
  std::array<double, 2> half_widths{};  // of the logarithm, below and above, the step's included
  double step_half_width = 0;           // the median of the steps that it was fitted with
  /// Share of the peak that model FLOPs reach in published steps (median): where the planner cannot
  /// express a model, its ideal steps are these.
  double analytic_mfu = 0;
  std::array<double, 2> parameters_range{}, peak_range{};  // of the trainings it was fitted on
  double usual_gpus = 0;                                   // of these trainings, in the middle
  Coverage in_sample, family_out;
  /// Quartiles of 6 N tokens over GPU hours and peak in training runs, by generation, and how
  /// many trainings.
  struct Quartiles {
    std::array<double, 3> mfu{};
    std::int64_t n = 0;
  };
  std::map<std::string, Quartiles> reached;
  std::vector<FittedWholeRun> runs;

  /// False for a data folder without the file: then nothing is known beyond the ideal.
  bool known() const { return half_widths[1] > 0; }
};

/// How much a job is one of a small model on many GPUs; 0 for large models and for small jobs.
double small_in_large(double parameters, double ideal_gpu_hours);

/// Standard deviations on either side of the middle that hold `level` of a normal distribution.
double normal_half_width(double level);

/// Whole hours over ideal ones: the middle, and the half-widths of its logarithm, below and above,
/// together with that of the step's own interval (0: the typical one).
struct ProductionFactor {
  double middle = 1;
  std::array<double, 2> half_widths{};
  bool beyond_fit = false;  // a size of model or a peak that no fitted training had
};
ProductionFactor factor_of(const Production& production, double parameters, double peak_flops,
                           double ideal_gpu_hours, double step_half_width);

/// "Volta", "Ampere", "Hopper", "Blackwell" by its 16-bit peak: what `reached` is keyed by.
std::string generation_of(double peak_flops);

/// The half-width of a step for factor_of(), of a step whose interval has this one, made of
/// `added`. What any stranger's step is off by is in the rests of the published trainings, which
/// were predicted so: their sources, sizes and scales, models and routing. What else is new adds to
/// it; what was measured narrows it.
double step_half_width_of(const Production& production, double half_width,
                          const AddedWidths& added);

std::filesystem::path shipped_production();
/// Throws Error.
Production load_production(const std::filesystem::path& file);
/// The shipped one; of a data folder without that file nothing is known.
Production load_production();

}  // namespace shardwright::profiles
