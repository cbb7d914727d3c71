// SPDX-License-Identifier: Apache-2.0
// On what predictions of model-parallel plans were checked, and how far their memory was off:
// profiles/data/fitted/model_parallel_residuals.json, written by
// python3 -m profiles.research model-parallel from the runs of published/parallel.csv. Widths of
// times are those of novelty_widths.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardwright::profiles {

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
  /// (sim/uncertainty/extrapolation.h).
  std::vector<std::string> extrapolations(const std::string& stack, const std::string& gpu,
                                          std::int64_t gpus_of_plan) const;
};

/// The shipped one, read once; of a data folder without that file nothing is known.
const ModelParallelUncertainty& model_parallel_uncertainty();

}  // namespace shardwright::profiles
