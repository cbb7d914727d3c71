// SPDX-License-Identifier: Apache-2.0
// How wide the interval of a step's time has to be by what is new about the run:
// profiles/data/fitted/novelty.json, written by python3 -m profiles.research novelty from published
// runs that were predicted as a stranger's: without their source and without the presets that it
// taught.
//
// Half-widths are of the logarithm. Each axis adds its own to a base; they add up as squares, as
// independent errors do. What an axis adds is what a measurement on that axis would take away.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/uncertainty/width_axes.h"

namespace shardwright::profiles {

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

}  // namespace shardwright::profiles
