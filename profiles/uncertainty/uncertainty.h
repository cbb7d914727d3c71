// SPDX-License-Identifier: Apache-2.0
// How far predictions of iteration time have been off, and on what they were checked:
// profiles/data/fitted/residuals.json.
//
// Written by `python3 -m profiles.research steps` from the published runs, each predicted by
// constants that were fitted without it. sim/uncertainty/intervals.h compares a prediction's
// inputs with what was seen, sim/score/validation.h shows what the runs were off by.
#pragma once

#include <array>
#include <cstddef>
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

// The axes on which a run can be new, and how wide each makes the interval of its time.

/// What can be new about a run, or uncertain about its step.
enum class WidthAxis : std::uint8_t {
  kSource,      // the base: whose runs were published or not
  kModelClass,  // experts
  kPrecision,   // fp8 and fewer bits
  kGpu,
  kFramework,
  kSize,     // longer sequences or wider layers than any published run had
  kHost,     // layers quicker than the quickest published ones, which the host may not keep up with
  kRouting,  // loads of experts that nobody measured
  kScale,    // what machines lose with the number of GPUs
  kOrder,    // of kernels of equal priority
  kRetries   // the allocator empties its cache within a step
};
inline constexpr std::size_t kWidthAxes = 11;
/// "source", "model_class", ..
std::string_view name_of(WidthAxis axis);

using AddedWidths = std::array<double, kWidthAxes>;
inline double& at(AddedWidths& widths, WidthAxis axis) {
  return widths[static_cast<std::size_t>(axis)];
}
inline double at(const AddedWidths& widths, WidthAxis axis) {
  return widths[static_cast<std::size_t>(axis)];
}
/// The half-width that they add up to.
double total_of(const AddedWidths& widths);

// What one measured step tells of other steps of the same model, GPU and framework:
// profiles/data/fitted/anchored_residuals.json, written by python3 -m profiles.research anchored
// from the published runs.
//
// An error of a predicted step has a part that runs of one series (a source's runs of a model on a
// GPU) share, and a part of its own. A measured step shows the sum. With the half-width h of a
// prediction and the half-width w of the part of its own, the share 1 - (w/h)^2 of what was seen is
// expected of the next run, and that run's own half-width is w sqrt(2 - (w/h)^2) (the conditional
// mean and variance of two normal errors that share a part).

struct AnchoredWidth {
  bool model_parallel = false;  // plans beyond data parallelism, experts, fp8
  double own = 0;               // w, of the logarithm
  std::int64_t runs = 0, cells = 0;
};

struct AnchoredUncertainty {
  double level = 0.9;
  std::vector<AnchoredWidth> widths;

  /// Of the difference to a prediction of this half-width, what to expect of other runs; 0 where
  /// nothing is known of such runs.
  double carried_share(bool model_parallel, double half_width) const;
  /// The half-width of another run's prediction once a step was measured; never above `half_width`.
  double half_width(bool model_parallel, double half_width) const;
};

/// The shipped one, read once; of a data folder without that file nothing is known.
const AnchoredUncertainty& anchored_uncertainty();

// On what predictions of model-parallel plans were checked, and how far their memory was off:
// profiles/data/fitted/model_parallel_residuals.json, written by
// python3 -m profiles.research model-parallel from the runs of published/parallel.csv. Widths of
// times are those above.

/// What was published of a stack: series (what one source tells of a model on a GPU) and GPUs.
struct ModelParallelRuns {
  std::string stack;
  std::int64_t series = 0;
  std::vector<std::string> gpus;
};

struct ModelParallelUncertainty {
  /// Of the logarithm of what a rank reserves, with model-parallel frameworks: from measured
  /// peaks, and from runs near the edge that fitted or went out of memory. 0: not known.
  double memory_half_width = 0;
  std::vector<std::string> gpus;  // of the runs
  std::int64_t most_gpus = 0;     // that one of them took
  std::vector<ModelParallelRuns> stacks;

  /// Null where no run of that stack was published.
  const ModelParallelRuns* runs_of(const std::string& stack) const;

  /// One sentence for each input outside, as of plans that divide only data
  /// (sim/uncertainty/intervals.h).
  std::vector<std::string> extrapolations(const std::string& stack, const std::string& gpu,
                                          std::int64_t gpus_of_plan) const;
};

/// The shipped one, read once; of a data folder without that file nothing is known.
const ModelParallelUncertainty& model_parallel_uncertainty();

// How wide the interval of a step's time has to be by what is new about the run:
// profiles/data/fitted/novelty.json, written by python3 -m profiles.research novelty from published
// runs that were predicted as a stranger's: without their source and without the presets that it
// taught.
//
// Half-widths are of the logarithm. Each axis adds its own to a base; they add up as squares, as
// independent errors do. What an axis adds is what a measurement on that axis would take away.

/// Cores of one number and clock differ by their vector units, caches and memory channels: two
/// threads of two processors take a factor of 2 for the same step, and other work doubles that. The
/// logarithm of 3.
inline constexpr double kUnmeasuredProcessorHalfWidth = 1.0986122886681098;

/// What decides which axes a run is new on.
struct RunKind {
  bool model_parallel = false;  // beyond data parallelism
  bool moe = false, narrow = false;
  bool adapters = false;  // of frozen weights: no published run in the ledgers trains them
  bool known_source = false;
  bool gpu_known = false;      // by a trace of the user's, or by runs of the same source
  bool gpu_estimated = false;  // rates of its products that nobody measured on it
  bool knows_loads = true;     // of experts: forced to be equal, measured, or there are none
  bool graphs = false;         // of the whole step: the host launches nothing
  std::string_view stack, gpu, architecture, precision;
  double seq_len = 0, hidden = 0;
  double layer_s = 0;  // of the predicted step, for one layer of one micro-batch
};

struct NoveltyWidths {
  struct Cells {
    bool model_parallel = false, moe = false;
    std::string stack, gpu, architecture, precision;
    std::int64_t cells = 0;
  };
  /// Of strangers' runs with widths that were fitted without their source.
  struct Coverage {
    std::int64_t runs = 0, inside = 0;
    double median_half_width = 0;
    double named_error = 0, stranger_error = 0;  // means of a source's runs
  };

  double level = 0.9;
  double data_parallel = 0, data_parallel_known_source = 0, model_parallel = 0;  // the base
  /// How much less memory strangers' runs took than was predicted; of the logarithm.
  double memory_less = 0;
  std::map<std::string, double, std::less<>> axes;  // by the names of the file
  double fastest_dense_layer_s = 0, fastest_moe_layer_s = 0;
  std::map<std::string, double, std::less<>> largest_data_parallel, largest_model_parallel;
  std::vector<Cells> cells;
  Coverage all;
  std::map<std::string, Coverage> by_class, by_novelty, by_source;

  bool known() const { return model_parallel > 0; }
  AddedWidths of(const RunKind& run) const;
  /// Whether somebody published a run on a GPU of that generation.
  bool ran_on(std::string_view architecture) const;
  /// Of the published runs; 0: not known.
  double most_gpus(bool model_parallel) const;
};

/// The shipped ones, read once; of a data folder without that file nothing is known.
const NoveltyWidths& novelty_widths();

// How far machines differ in what a step loses with every doubling of the GPUs beyond a node, by
// kind of network: profiles/data/fitted/scale_residuals.json, written by python3 -m
// profiles.research scale-loss from published series that differ in their number of GPUs alone.
//
// Machines on one kind of network differ about as much as kinds do, so all of them give one mean
// loss (cost.contention.scale_loss) and one width; a kind on which nobody published a series gets
// a wider one.

struct ScaleUncertainty {
  double half_width_per_doubling = 0;       // of the logarithm of a step's time
  double unmeasured_factor = 1;             // on it, where nobody measured that kind of network
  std::vector<std::string> networks;        // that series were published of
  std::int64_t machines = 0, series = 0;    // that it was taken from
  double least_loss = 0, largest_loss = 0;  // of these machines, of a step per doubling

  bool known() const { return machines > 0; }
  bool measured(const std::string& network) const;
  /// `network` as in Cluster.
  double half_width(const std::string& network, double doublings) const;
};

/// The shipped one, read once; of a data folder without that file nothing is known.
const ScaleUncertainty& scale_uncertainty();

}  // namespace shardwright::profiles
