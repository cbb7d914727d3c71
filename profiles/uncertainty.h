// SPDX-License-Identifier: Apache-2.0
// How far predictions of iteration time have been off, and on what they were checked:
// profiles/data/fitted/residuals.json.
//
// Written by `shardwright_fit steps` from the published runs, each predicted by constants that were
// fitted without it. sim/doubt/conformal.h turns the half-widths into an interval,
// sim/doubt/extrapolation.h compares a prediction's inputs with what was seen.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright::profiles {

/// What limits a step, by the share of it in which communication is exposed.
enum class Regime : std::uint8_t { kComputeBound, kCommunicationBound };
/// "compute-bound", "communication-bound".
std::string_view name_of(Regime regime);

/// The interval of one stack and regime: predicted time times e^-half_width to e^half_width.
struct ErrorGroup {
  std::string stack;
  Regime regime = Regime::kComputeBound;
  std::int64_t n = 0;       // runs of this stack and regime
  std::string pool;         // whose errors the width is taken from, in words
  std::int64_t pool_n = 0;  // runs in that pool
  double half_width = 0;    // of the logarithm
};

struct Uncertainty {
  double level = 0.9;
  double regime_boundary = 0.1;  // exposed share from which a step is communication-bound
  std::string source, command, date;
  std::vector<ErrorGroup> groups;
  double elsewhere_half_width = 0;  // stacks, or stacks on GPUs, without a run
  std::int64_t elsewhere_sources = 0;
  /// Smallest and largest input of the runs, by name: "seq_len".
  std::map<std::string, std::array<double, 2>, std::less<>> ranges;
  /// Words that occur in the runs, by kind: "strategy", "stack on gpu".
  std::map<std::string, std::vector<std::string>, std::less<>> seen;

  /// False for a profile that was put together by hand: then no interval is known.
  bool known() const { return !groups.empty(); }
};

/// One run, predicted by constants fitted without it and without its whole source.
struct HeldOutRun {
  std::string id, source, stack, gpu;
  double exposed_share = 0;
  double log_error = 0;             // log(predicted / measured)
  double log_error_source_out = 0;  // the same, fitted without the source
};

/// The shipped file, <data_dir>/fitted/residuals.json.
std::filesystem::path shipped_residuals();

/// Without the runs. Throws Error.
Uncertainty load_uncertainty(const std::filesystem::path& file);
/// The shipped one; of a data folder without that file nothing is known.
Uncertainty load_uncertainty();
std::vector<HeldOutRun> load_held_out_runs(const std::filesystem::path& file);
void save_uncertainty(const Uncertainty& uncertainty, const std::vector<HeldOutRun>& runs,
                      const std::filesystem::path& file);

}  // namespace shardwright::profiles
