// SPDX-License-Identifier: Apache-2.0
// Step times from the log of a trainer: torchtitan, Megatron-LM and Megatron-Bridge, NeMo,
// nanotron, the Trainer of Transformers and Accelerate's progress bars, and metrics.jsonl of `run`.
//
// Lines are told apart by the words that only one trainer writes; the first kind that is found
// counts, others of the same log do not. Several ranks may write the same step, colours and tags
// may stand before it. Trainers print a step's time, its rate, or tokens a second of one GPU
// (torchtitan), which `tokens_per_gpu` of a step turn into a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace shardwright::profiles {

struct StepLog {
  std::string format;           // "torchtitan", "Megatron", ...; empty: no step was found
  std::vector<double> seconds;  // of each step that was logged, in order
};

/// Throws Error naming the file when it cannot be read or holds no step.
StepLog read_step_log(const std::filesystem::path& file, double tokens_per_gpu);

/// The kinds of log, in words: "torchtitan, Megatron-LM, ...".
std::string step_log_kinds();

struct MedianStep {
  double seconds = 0;
  double spread = 0;  // of single steps: a standard deviation of the logarithm, robust
  std::int64_t steps = 0, skipped = 0;
};

/// Without the first `skipped` of the log, or, where nothing would be left, the first half of it.
MedianStep median_step(const StepLog& log, std::int64_t skipped);

}  // namespace shardwright::profiles
