// SPDX-License-Identifier: Apache-2.0
// What a run shows while it runs: a head, a line a step, notes, and a summary.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "cli/render/text/terminal.h"
#include "cli/run/ranks.h"
#include "exec/train/trainer.h"
#include "sim/trace/step_summary.h"

namespace shardwright::cli {

/// What a run's steps are held against.
struct RunReference {
  std::optional<double> predicted_s;
  sim::Utilisation utilisation;
  Bytes planned_bytes = 0;  // of one rank's device memory
};

/// Model, ranks, data and memory, a line each.
std::string run_head(const RunOptions& options, const exec::Data& data,
                     const RunReference& reference, const AttentionNote& attention);

/// Prints steps to `steps` and notes to stderr as they happen.
class RunPrinter final : public exec::TrainObserver {
 public:
  /// `shown` is false on all ranks but one. Of steps that are neither evaluated nor skipped, the
  /// first and every `log_every`-th are shown.
  RunPrinter(std::FILE* steps, const Terminal& terminal, bool shown, std::int64_t log_every,
             const RunReference& reference);
  void on_step(const exec::StepMetrics& metrics) override;
  void on_note(const std::string& sentence) override;

  /// Of the steps so far, the first one left out where there are more; 0: none.
  double median_step_s() const;

 private:
  std::FILE* steps_;
  Terminal terminal_;
  bool shown_;
  std::int64_t log_every_;
  RunReference reference_;
  bool head_shown_ = false;
  std::vector<double> step_times_s_;
};

/// A line for a person while a run goes on. Nobody reading it any more (a closed terminal, a pipe
/// whose end has gone) is no failure; a full disk is one of the stream.
void say(std::FILE* to, const std::string& line);

}  // namespace shardwright::cli
