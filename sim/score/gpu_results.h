// SPDX-License-Identifier: Apache-2.0
// Runs that scripts/gpu_check timed on a machine, predicted anew: what `validate --gpu-results`
// prints.
//
// The file "shardwright.gpu_results/1.0" holds the plan of each run, the step that was measured and
// the one that was predicted then. Here every run is predicted with today's constants for the
// cluster that the file names and, where the machine was measured, with its own profile.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/units.h"
#include "sim/score/validation.h"

namespace shardwright::sim {

struct GpuRun {
  std::string model;
  std::int64_t gpus = 1;
  std::string attention;           // that ran; empty: the file does not say
  double measured_s = 0;           // of a step
  std::optional<double> then_s;    // predicted when it was measured
  double predicted_s = 0;          // today, for the cluster
  std::optional<double> after_s;   // today, with what was measured on the machine
  Bytes peak_bytes = 0;            // of the run's own memory
  Bytes predicted_peak_bytes = 0;  // allocated, today
  double error() const { return predicted_s / measured_s - 1; }
};

struct GpuResults {
  std::string gpu, when, cluster;
  std::vector<GpuRun> runs;
  std::vector<std::string> skipped;  // "llama-3.1-8b on 1: needs ..."
  ErrorScore time, after, memory;
};

/// Throws Error naming file and key.
GpuResults score_gpu_results(const std::filesystem::path& file,
                             const std::vector<std::string>& overrides = {});

}  // namespace shardwright::sim
