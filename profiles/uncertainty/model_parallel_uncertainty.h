// SPDX-License-Identifier: Apache-2.0
// How far predicted steps of model-parallel plans have been off, by what runs:
// profiles/data/fitted/model_parallel_residuals.json, written by
// scripts/fit_model_parallel_intervals from the runs of published/parallel.csv.
//
// Nothing of those predictions is fitted run by run, so classes differ by what is modelled well:
// dense layers or MoE models, 16 bits or fewer. A GPU without such a run widens the
// interval as a largest error does (sim/uncertainty/conformal.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardwright::profiles {

struct ModelParallelWidth {
  bool moe = false;
  bool narrow = false;     // GEMMs in fp8 or fewer bits
  double half_width = 0;   // of the logarithm of a step's time
  std::int64_t cells = 0;  // that it was taken from
};

/// What was published of a stack: series (what one source tells of a model on a GPU) and GPUs.
struct ModelParallelRuns {
  std::string stack;
  std::int64_t series = 0;
  std::vector<std::string> gpus;
};

struct ModelParallelUncertainty {
  double level = 0.9;
  std::vector<ModelParallelWidth> widths;
  /// Of the logarithm of what a rank reserves, with model-parallel frameworks: from measured
  /// peaks, and from runs near the edge that fitted or went out of memory. 0: not known.
  double memory_half_width = 0;
  std::vector<std::string> gpus;  // of the runs
  std::int64_t most_gpus = 0;     // that one of them took
  std::vector<ModelParallelRuns> stacks;

  /// 0 where nothing is known of such runs. `gpu`: its id.
  double half_width(bool moe, bool narrow, const std::string& gpu) const;

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
