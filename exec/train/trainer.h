// SPDX-License-Identifier: Apache-2.0
// The training loop of one rank: batches in, optimizer steps, evaluation, metrics, checkpoints, and
// an orderly end.
//
// All ranks run it side by side and decide alike: losses and norms are the same numbers on every
// rank, and what only one of them knows (a signal, a full disk) goes around once a step. Rank 0
// writes metrics and talks to the observer.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "exec/executor.h"
#include "exec/train/checkpoint.h"
#include "exec/train/checkpointer.h"
#include "exec/train/data/dataset.h"
#include "exec/train/hang_watch.h"
#include "exec/train/metrics.h"
#include "exec/train/safetensors.h"

namespace shardwright::exec {

// The learning rate of every step: warm-up, then constant, cosine, linear or WSD.
//
// A pure function of the step, so nothing of it is saved in a checkpoint.

enum class LrShape : std::uint8_t {
  kConstant,
  kCosine,  // half a cosine from the peak to the final rate
  kLinear,  // a straight line from the peak to the final rate
  kWsd      // warm-up, stable, decay: the peak, then a straight line in the last share of the steps
};

std::string_view name_of(LrShape shape);  // "constant", "cosine", "linear", "wsd"
std::optional<LrShape> lr_shape_from(std::string_view name);

struct LrSchedule {
  LrShape shape = LrShape::kCosine;
  double peak = 3e-4;
  std::int64_t total_steps = 1;
  std::int64_t warmup_steps = 0;
  double final_fraction = 0.1;  // of the peak, reached at the last step; constant ignores it
  double decay_fraction = 0.2;  // wsd: share of all steps in which the rate falls
};

/// The rate of step 1, 2, ..., total_steps. Warm-up rises as peak * step / warmup_steps, so that no
/// step is wasted at rate 0; after the last step the rate stays what it was there.
double learning_rate(const LrSchedule& schedule, std::int64_t step);

/// Throws Error naming the flag of the first value that is out of range.
void check_lr_schedule(const LrSchedule& schedule);

/// What happens when a step's loss or gradients are not finite, or the gradient norm is above
/// skip_above. Such a step changes no parameter.
enum class BadStepPolicy : std::uint8_t { kStop, kSkip };

struct TrainOptions {
  LrSchedule lr;
  kernels::AdamW adamw;  // lr, step, grad_scale and seed are set by the loop
  ClipOptions clip;
  BadStepPolicy bad_step = BadStepPolicy::kStop;
  std::int64_t most_bad_steps = 10;  // in a row, when skipping
  bool event_files = false;          // for TensorBoard, in folder/tensorboard
  double max_loss = 0;               // the run stops above it; 0: never
  std::uint64_t seed = 0;
  std::int64_t eval_every = 0;      // 0: only at the end
  std::int64_t eval_sequences = 0;  // at most; 0: all
  std::int64_t save_every = 0;      // 0: only at the end, and after every save_interval_s
  double save_interval_s = 0;       // by rank 0's clock; 0: never
  double save_patience_s = 0;       // how long a last checkpoint that cannot be written is retried
  bool saves = true;                // without: no checkpoint at all, for runs that are only timed
  std::int64_t keep = 0;            // checkpoints; 0: all
  std::optional<Bytes> host_memory_left;  // for checkpoints; none: what the machine says
  std::int64_t compare_every = 100;       // steps, and before checkpoints: what replicas hold
  std::int64_t trace_step = 0;            // the first whose timeline is kept; 0: none
  std::int64_t trace_steps = 1;           // how many
  std::filesystem::path folder;           // of metrics.jsonl and checkpoints/
  std::string config;                     // the model's config.json
  std::string tool_version;
  std::string job_hash;  // of what all ranks have agreed on, and of that what checkpoints keep
  JobFacts job;
  const Checkpoint* resume = nullptr;
  const SafetensorsModel* weights = nullptr;  // to start from; null: random
  std::string weights_name;
  const std::atomic<bool>* stop = nullptr;
  /// Called on every rank before anything is run, with the batch of the first step.
  std::function<void(Executor&, const Batch&)> prepare;
  /// Do everything once before the first collective (Executor::rehearse).
  bool rehearses = false;
  HangLimits hang;
  SaveLimits save_limits;
  SaveWatch::Tell on_slow_save;  // none: nobody looks
  /// Hears of a step, or of what comes before and between steps, that does not end, on every rank;
  /// none: nobody looks.
  std::function<void(const std::string&)> on_hang;
  /// Adds what the loop cannot know to a step's metrics before they are written.
  std::function<void(StepMetrics&)> annotate;
};

/// Hears what happens, on rank 0.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void on_step(const StepMetrics& metrics) = 0;
  virtual void on_note(const std::string& sentence) = 0;
};

struct TrainResult {
  std::int64_t first_step = 0;  // 1, or the one after the checkpoint's
  std::int64_t last_step = 0;   // done
  double loss = 0;              // of the last step
  std::optional<double> eval_loss;
  std::int64_t skipped_steps = 0;
  bool interrupted = false;
  std::string failure;           // why the run gave up; empty: it did not
  std::int64_t saved_step = -1;  // the newest checkpoint of this run
  bool save_failed = false;
  std::int64_t lost_metrics = 0;  // lines that could not be written
  std::string lost_metrics_why{};
  Timeline timeline;                    // of the traced steps one after the other, all ranks
  std::vector<double> traced_step_s{};  // how long each took
  std::string trace_report{};           // of a tracer: what it saw and what it cost; may be empty
};

/// `observer` may be null, and is on ranks other than 0. Throws Error.
TrainResult train(Executor& executor, const Plan& plan, const Data& data,
                  const TrainOptions& options, TrainObserver* observer);

/// checkpoints/ of a run's folder.
std::filesystem::path checkpoints_folder(const std::filesystem::path& run_folder);

}  // namespace shardwright::exec
