// SPDX-License-Identifier: Apache-2.0
// How far predictions of iteration time have been off, and on what they were checked:
// profiles/data/fitted/residuals.json.
//
// Written by `python3 -m profiles.research steps` from the published runs, each predicted by
// constants that were fitted without it. sim/uncertainty/extrapolation.h compares a prediction's
// inputs with what was seen, sim/score/leave_one_out.h shows what the runs were off by.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright::profiles {

/// How much is known of runs like one that is predicted, most first.
enum class Novelty : std::uint8_t {
  kCell,        // this source ran this model on this GPU
  kStackOnGpu,  // three cells or more have this stack on this GPU
  kSourceOnly,  // this source is known, or this GPU, in other company
  kNothing      // nobody published a run of this GPU
};
inline constexpr int kNovelties = 4;
/// "cell", "stack_gpu", "source_only", "nothing".
std::string_view name_of(Novelty novelty);

/// How far peaks of memory are off, as half-widths of the logarithm: one for each side, because
/// only what a run needs beyond the prediction decides whether it fits.
struct MemoryWidths {
  double more = 0, less = 0;  // than was predicted
};

struct Uncertainty {
  MemoryWidths memory;            // of software whose peaks somebody measured
  MemoryWidths memory_of_others;  // of other software
  /// Smallest and largest input of the runs, by name: "seq_len".
  std::map<std::string, std::array<double, 2>, std::less<>> ranges;
  /// Words that occur in the runs, by kind: "strategy", "stack on gpu".
  std::map<std::string, std::vector<std::string>, std::less<>> seen;

  /// False for a profile that was put together by hand: then no interval is known.
  bool known() const { return !seen.empty(); }
};

/// One run, predicted by constants fitted to all runs and without it, its cell (what its source ran
/// of its model on its GPU) and its source: log(predicted / measured).
struct HeldOutRun {
  std::string id, source, stack, gpu, model;
  double log_error_fitted = 0, log_error = 0, log_error_cell_out = 0, log_error_source_out = 0;
  /// Of an interval made without the run, its cell, its source.
  std::array<bool, 3> inside{};

  std::string cell() const { return source + " | " + gpu + " | " + model; }
};

/// A constant of the fit, and how far a single run or source moves it.
struct MovedConstant {
  std::string name;
  double value = 0;
  std::array<double, 2> run_out{}, source_out{};
};

/// What leaving out runs showed.
struct HeldOutRecord {
  double level = 0.9;             // of the intervals
  double simulated_coverage = 0;  // of intervals for new cells, errors drawn as these runs'
  /// Measured peaks, and how many lie in an interval made without the run, without its source.
  std::int64_t peaks = 0, peaks_run_out = 0, peaks_source_out = 0;
  std::vector<MovedConstant> constants;
  std::vector<HeldOutRun> runs;
};

/// The shipped file, `data_dir()`/fitted/residuals.json.
std::string shipped_residuals();

/// Throws Error, as load_held_out does.
Uncertainty load_uncertainty(const std::string& file);
/// The shipped one; of a data folder without that file nothing is known.
Uncertainty load_uncertainty();
HeldOutRecord load_held_out(const std::string& file);

}  // namespace shardwright::profiles
