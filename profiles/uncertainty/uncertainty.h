// SPDX-License-Identifier: Apache-2.0
// How far predictions of iteration time have been off, and on what they were checked:
// profiles/data/fitted/residuals.json.
//
// Written by `shardwright_fit steps` from the published runs, each predicted by constants that were
// fitted without it. sim/uncertainty/conformal.h turns the half-widths into an interval,
// sim/uncertainty/extrapolation.h compares a prediction's inputs with what was seen.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
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

/// Runs of one cell (source, GPU and model) share much of their error, so cells are what counts as
/// independent.
struct NoveltyWidth {
  Novelty novelty = Novelty::kNothing;
  std::string errors;  // whose errors the width is taken from, in words
  std::int64_t runs = 0, cells = 0;
  double half_width = 0;  // of the logarithm
};

/// How far peaks of memory are off, as half-widths of the logarithm: one for each side, because
/// only what a run needs beyond the prediction decides whether it fits.
struct MemoryWidths {
  double more = 0, less = 0;  // than was predicted
};

struct Uncertainty {
  double level = 0.9;
  std::string source, command, date;
  std::vector<NoveltyWidth> widths;  // by Novelty, never falling
  MemoryWidths memory;               // of software whose peaks somebody measured
  MemoryWidths memory_of_others;     // of other software
  std::int64_t memory_runs = 0, memory_sources = 0;
  /// Smallest and largest input of the runs, by name: "seq_len".
  std::map<std::string, std::array<double, 2>, std::less<>> ranges;
  /// Words that occur in the runs, by kind: "strategy", "stack on gpu".
  std::map<std::string, std::vector<std::string>, std::less<>> seen;

  /// False for a profile that was put together by hand: then no interval is known.
  bool known() const { return !widths.empty(); }
};

/// One run, predicted by constants fitted without it, without its cell and without its source.
struct HeldOutRun {
  std::string id, source, stack, gpu, model;
  double exposed_share = 0;
  double log_error = 0;             // log(predicted / measured)
  double log_error_cell_out = 0;    // the same, fitted without the cell
  double log_error_source_out = 0;  // the same, fitted without the source

  std::string cell() const { return source + " | " + gpu + " | " + model; }
};

/// The shipped file, `data_dir()`/fitted/residuals.json.
std::filesystem::path shipped_residuals();

/// Without the runs. Throws Error.
Uncertainty load_uncertainty(const std::filesystem::path& file);
/// The shipped one; of a data folder without that file nothing is known.
Uncertainty load_uncertainty();
std::vector<HeldOutRun> load_held_out_runs(const std::filesystem::path& file);
void save_uncertainty(const Uncertainty& uncertainty, const std::vector<HeldOutRun>& runs,
                      const std::filesystem::path& file);

}  // namespace shardwright::profiles
