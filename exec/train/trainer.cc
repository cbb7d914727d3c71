// SPDX-License-Identifier: Apache-2.0
#include "exec/train/trainer.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numbers>
#include <thread>
#include <tuple>
#include <utility>

#include "exec/comm/launch_environment.h"
#include "exec/host_memory.h"
#include "exec/trace/activity.h"
#include "exec/train/checkpoint.h"
#include "exec/train/checkpointer.h"
#include "exec/train/data/dataset.h"
#include "exec/train/metrics.h"
#include "exec/train/replicas.h"
#include "exec/train/train_state.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/numbers.h"

namespace shardwright::exec {

namespace {

constexpr std::pair<LrShape, std::string_view> kShapeNames[] = {{LrShape::kConstant, "constant"},
                                                                {LrShape::kCosine, "cosine"},
                                                                {LrShape::kLinear, "linear"},
                                                                {LrShape::kWsd, "wsd"}};

}  // namespace

std::string_view name_of(LrShape shape) {
  for (const auto& [value, name] : kShapeNames) {
    if (value == shape) return name;
  }
  return "unknown";
}

std::optional<LrShape> lr_shape_from(std::string_view name) {
  for (const auto& [value, known] : kShapeNames) {
    if (known == name) return value;
  }
  return std::nullopt;
}

double learning_rate(const LrSchedule& s, std::int64_t step) {
  const std::int64_t at = std::clamp<std::int64_t>(step, 1, s.total_steps);
  if (at < s.warmup_steps) {
    return s.peak * static_cast<double>(at) / static_cast<double>(s.warmup_steps);
  }
  if (s.shape == LrShape::kConstant) return s.peak;

  const auto total = static_cast<double>(s.total_steps);
  double start = static_cast<double>(s.warmup_steps);
  if (s.shape == LrShape::kWsd)
    start = std::max(start, total - std::round(total * s.decay_fraction));
  const double steps_down = total - start;
  const double progress =
      steps_down > 0 ? std::max(0.0, (static_cast<double>(at) - start) / steps_down) : 0.0;
  const double left = s.shape == LrShape::kCosine
                          ? 0.5 * (1.0 + std::cos(std::numbers::pi * progress))
                          : 1.0 - progress;
  return s.peak * (s.final_fraction + (1.0 - s.final_fraction) * left);
}

void check_lr_schedule(const LrSchedule& s) {
  if (!(s.peak > 0) || !std::isfinite(s.peak)) {
    throw Error(fmt::format("--lr is {}, expected a number above 0", s.peak));
  }
  if (s.total_steps < 1) {
    throw Error(fmt::format("--steps is {}, expected at least 1", s.total_steps));
  }
  if (s.warmup_steps < 0 || s.warmup_steps > s.total_steps) {
    throw Error(fmt::format("--warmup is {}, expected 0 to {}, the number of steps", s.warmup_steps,
                            s.total_steps));
  }
  if (!(s.final_fraction >= 0 && s.final_fraction <= 1)) {
    throw Error(fmt::format("--final-lr-fraction is {}, expected 0 to 1", s.final_fraction));
  }
  if (!(s.decay_fraction >= 0 && s.decay_fraction <= 1)) {
    throw Error(fmt::format("--decay-fraction is {}, expected 0 to 1", s.decay_fraction));
  }
}

namespace {

/// The run of one rank.
class Run {
  using Clock = std::chrono::steady_clock;

 public:
  Run(Executor& executor, const Plan& plan, const Data& data, const TrainOptions& options,
      TrainObserver* observer)
      : executor_(executor),
        plan_(plan),
        data_(data),
        options_(options),
        observer_(observer),
        rank_(executor.world().rank()),
        shape_{plan.micro_batch, plan.grad_accum, executor.data_ranks()},
        order_(options.seed, data.train->sequences()),
        checkpointer_(executor, checkpoints_folder(options.folder), options.keep, manifest(),
                      [this](const std::string& sentence) { note(sentence); }) {}

  TrainResult run() {
    begin();
    while (result_.last_step < options_.lr.total_steps && result_.failure.empty() &&
           !result_.interrupted) {
      step(result_.last_step + 1);
    }
    end();
    return std::move(result_);
  }

 private:
  CheckpointManifest manifest() const {
    CheckpointManifest manifest;
    manifest.seed = options_.seed;
    manifest.data_fingerprint = data_.train->fingerprint();
    manifest.config = options_.config;
    manifest.plan = plan_;
    manifest.tool_version = options_.tool_version;
    manifest.job_hash = options_.job_hash;
    manifest.job = options_.job;
    return manifest;
  }

  void begin() {
    if (options_.on_hang) {
      watchdog_ = std::make_unique<StepWatchdog>(
          options_.hang, rank_, options_.folder, [this] { return executor_.progress(); },
          options_.on_hang);
    }
    try_everything_once();
    if (options_.resume != nullptr) {
      const CheckpointManifest& from = options_.resume->manifest();
      if (from.seed != options_.seed) {
        throw Error(fmt::format("{}: made with seed {}, but the run's is {}",
                                options_.resume->folder().string(), from.seed, options_.seed));
      }
      if (from.data_fingerprint != data_.train->fingerprint()) {
        throw Error(
            fmt::format("{}: made with other training data or another sequence length, so "
                        "its place in the data means nothing; expected those of {}",
                        options_.resume->folder().string(), data_.train->describe()));
      }
      require_room_to_count(from);
      restore(executor_, plan_, *options_.resume);
      result_.last_step = from.step;
      sequences_ = from.sequences;
      tokens_ = from.tokens;
    } else if (options_.weights != nullptr) {
      executor_.initialize(options_.seed);  // moments
      load_weights(executor_, *options_.weights, options_.weights_name);
    } else {
      executor_.initialize(options_.seed);
    }
    result_.first_step = result_.last_step + 1;
    saved_ = result_.last_step;
    if (rank_ == 0) {
      make_checkpoints_folder();
      remove_unfinished_checkpoints(checkpoints_folder(options_.folder));
      const std::int64_t aside =
          set_aside_checkpoints(checkpoints_folder(options_.folder), result_.last_step);
      if (aside > 0) {
        note(fmt::format("{} checkpoint{} of another run or course {} set aside as {}/abandoned-*",
                         aside, aside == 1 ? "" : "s", aside == 1 ? "is" : "are",
                         checkpoints_folder(options_.folder).string()));
      }
      if (options_.event_files)
        events_ = std::make_unique<EventFile>(options_.folder / "tensorboard");
      metrics_ = std::make_unique<MetricsLog>(options_.folder / "metrics.jsonl", result_.last_step);
    }
    executor_.world().barrier();
    if (options_.saves) {
      require_shared_folder(executor_.world(), checkpoints_folder(options_.folder),
                            executor_.counting_ranks());
      checkpointer_.require_room(options_.host_memory_left ? options_.host_memory_left
                                                           : host_memory_left());
      if (options_.save_every > 0 || options_.save_interval_s > 0) checkpointer_.prepare();
    }
    if (options_.saves && options_.on_slow_save)
      checkpointer_.watch(options_.save_limits, options_.on_slow_save);
    last_save_ = Clock::now();
  }

  /// The first collectives of a process are where a machine's connections fail.
  void try_everything_once() {
    if (!options_.prepare && !options_.rehearses) return;
    const Batch batch =
        training_batch(*data_.train, order_, shape_, sequences_, executor_.data_rank());
    if (options_.prepare) {
      watch({"the timing of products", options_.hang.first_s});
      options_.prepare(executor_, batch);
    }
    if (options_.rehearses) {
      executor_.rehearse(batch, [this](const std::string& what, bool is_collective) {
        watch({fmt::format("the rehearsal, {},", what),
               is_collective ? std::min(options_.hang.collective_s, options_.hang.first_s)
                             : options_.hang.first_s,
               is_collective ? kHowConnectionsFail : ""});
      });
    }
    if (watchdog_) watchdog_->end_stage();
  }

  void watch(const WatchedStage& stage) {
    if (watchdog_) watchdog_->begin(stage);
  }

  /// Throws Error when the run's remaining steps would count beyond what a checkpoint may say.
  void require_room_to_count(const CheckpointManifest& from) const {
    const double steps = static_cast<double>(options_.lr.total_steps - from.step);
    const double more = std::max(0.0, steps) * static_cast<double>(shape_.sequences());
    const auto most = static_cast<double>(kMostCounted);
    const double tokens =
        static_cast<double>(from.tokens) + more * static_cast<double>(plan_.seq_len);
    if (static_cast<double>(from.sequences) + more <= most && tokens <= most) return;
    throw Error(
        fmt::format("{}: says {} sequences and {} tokens, with which the run would count "
                    "beyond 2^53; expected what {} steps have consumed",
                    options_.resume->folder().string(), from.sequences, from.tokens, from.step));
  }

  /// Durable with its parents, so that the first checkpoint is, too.
  void make_checkpoints_folder() {
    const std::filesystem::path folder = checkpoints_folder(options_.folder);
    require_folder_or_none(folder);
    make_durable_folder(folder);
  }

  void step(std::int64_t number) {
    StepOptions step_options;
    step_options.adamw = options_.adamw;
    step_options.adamw.step = number;
    step_options.adamw.lr = learning_rate(options_.lr, number);
    step_options.adamw.seed = options_.seed;
    step_options.clip = options_.clip;
    // Checkpoints take as long as they take.
    if (watchdog_) watchdog_->begin(number);
    const StepResult done = executor_.step(
        training_batch(*data_.train, order_, shape_, sequences_, executor_.data_rank()),
        step_options);
    if (watchdog_) watchdog_->end();
    if (options_.trace_step > 0 && number >= options_.trace_step &&
        number < options_.trace_step + options_.trace_steps) {
      keep_timeline(done.seconds);
    } else if (number > result_.first_step + 1 && number + 1 != options_.trace_step) {
      // Neither the first steps, which are slower, nor the one in which a tracer prepares itself.
      untraced_s_.push_back(done.seconds);
    }

    StepMetrics metrics;
    metrics.step = number;
    metrics.loss = done.loss();
    metrics.grad_norm = done.gradient_norm;
    metrics.lr = step_options.adamw.lr;
    metrics.tokens = shape_.sequences() * plan_.seq_len;
    metrics.step_time_s = done.seconds;
    metrics.tokens_per_s = static_cast<double>(metrics.tokens) / done.seconds;
    metrics.skipped = done.skipped;
    judge(metrics);
    if (result_.failure.empty() || !done.skipped) {
      // A bad step that ends the run is not counted, so that a resumed run meets it again.
      result_.last_step = number;
      sequences_ += shape_.sequences();
      tokens_ += done.tokens;
      result_.loss = metrics.loss;
    }
    const bool last = number == options_.lr.total_steps || !result_.failure.empty();
    if (!last && due(options_.eval_every, number)) metrics.eval_loss = evaluate();
    if (last && result_.failure.empty()) metrics.eval_loss = evaluate();
    if (metrics.eval_loss && !std::isfinite(*metrics.eval_loss)) {
      explode(fmt::format("step {}: the evaluation's loss is {}", number, *metrics.eval_loss));
    }
    report(metrics);
    if (due(options_.compare_every, number)) compare_replicas(executor_, number);
    if (options_.saves && !last && result_.failure.empty() && due(options_.save_every, number)) {
      save();
    }
    const Wish all = checkpointer_.end_step({told_to_stop(), wants_to_save()});
    result_.interrupted = all.stop && !last;
    if (options_.saves && all.save && !last && saved_ != number && result_.failure.empty()) save();
    judge_state();
  }

  void end() {
    watchdog_.reset();
    // Parameters that made the loss explode are not worth keeping.
    if (options_.saves && !exploded_ && saved_ != result_.last_step) save();
    checkpointer_.finish();
    judge_state();
    insist_on_saving();
    report_tracing();
    result_.saved_step = checkpointer_.last_saved();
    result_.save_failed = checkpointer_.failed();
  }

  /// The last checkpoint is all that a run leaves. While it cannot be written, as on a full disk,
  /// it is tried again: somebody may make room. Rank 0 decides, and a wish to end ends the waiting.
  void insist_on_saving() {
    constexpr double kLongestPause_s = 30;
    const bool was_told = told_to_stop();
    const auto begin = Clock::now();
    const auto waited_s = [&] {
      return std::chrono::duration<double>(Clock::now() - begin).count();
    };
    for (double pause_s = 1;; pause_s = std::min(2 * pause_s, kLongestPause_s)) {
      const bool told = told_to_stop() && !was_told;
      const bool again = rank_ == 0 && checkpointer_.failed() && !exploded_ && !told &&
                         waited_s() + pause_s <= options_.save_patience_s;
      if (!checkpointer_.end_step({.stop = false, .save = again}).save) return;
      note(fmt::format("the last checkpoint is tried again in {:.0f} s, for {:.0f} s more", pause_s,
                       options_.save_patience_s - waited_s()));
      const double until_s = waited_s() + pause_s;
      while (waited_s() < until_s && (told_to_stop() == was_told))
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      save();
      checkpointer_.finish();
      judge_state();
    }
  }

  bool told_to_stop() const { return options_.stop != nullptr && options_.stop->load(); }

  static bool due(std::int64_t every, std::int64_t number) {
    return every > 0 && number % every == 0;
  }

  /// Rank 0's clock decides, so that all begin a checkpoint after the same step.
  bool wants_to_save() const {
    return rank_ == 0 && options_.save_interval_s > 0 &&
           Clock::now() - last_save_ >= std::chrono::duration<double>(options_.save_interval_s);
  }

  void save() {
    compare_replicas(executor_, result_.last_step);
    last_save_ = Clock::now();
    checkpointer_.begin(result_.last_step, sequences_, tokens_);
    saved_ = result_.last_step;
  }

  /// Ends the run without keeping what it has become.
  void explode(const std::string& what) {
    exploded_ = true;
    if (result_.failure.empty()) result_.failure = what;
  }

  /// A checkpoint of weights or moments that are no numbers is not written, and the run is over.
  void judge_state() {
    if (checkpointer_.not_finite().empty()) return;
    explode(fmt::format("step {}: {}", saved_, checkpointer_.not_finite()));
  }

  void judge(const StepMetrics& metrics) {
    if (metrics.skipped) {
      ++result_.skipped_steps;
      ++bad_in_a_row_;
      const std::string what = fmt::format(
          "step {}: loss {}, gradient norm {}{}", metrics.step, metrics.loss, metrics.grad_norm,
          std::isfinite(metrics.grad_norm) && std::isfinite(metrics.loss)
              ? fmt::format(", above {}", options_.clip.skip_above)
              : "");
      if (options_.bad_step == BadStepPolicy::kStop) {
        result_.failure = what + "; no parameter was changed";
      } else if (bad_in_a_row_ >= options_.most_bad_steps) {
        result_.failure = fmt::format("{}; {} such steps in a row", what, bad_in_a_row_);
      } else {
        note(what + "; the step is skipped");
      }
      return;
    }
    bad_in_a_row_ = 0;
    if (options_.max_loss > 0 && metrics.loss > options_.max_loss) {
      explode(
          fmt::format("step {}: loss {}, above {}", metrics.step, metrics.loss, options_.max_loss));
    }
  }

  std::optional<double> evaluate() {
    if (!data_.eval) return std::nullopt;
    std::int64_t count = data_.eval->sequences();
    if (options_.eval_sequences > 0) count = std::min(count, options_.eval_sequences);
    LossSums sum;
    for (std::int64_t first = 0; first < count; first += shape_.micro_batch * shape_.ranks) {
      if (watchdog_) {
        watch(
            {fmt::format("the evaluation after step {}", result_.last_step), watchdog_->limit_s()});
      }
      sum = executor_.evaluate(
          evaluation_batch(*data_.eval, shape_, plan_.seq_len, first, count, executor_.data_rank()),
          sum);
    }
    if (watchdog_) watchdog_->end_stage();
    if (sum.tokens == 0) return std::nullopt;
    result_.eval_loss = sum.loss / static_cast<double>(sum.tokens);
    return result_.eval_loss;
  }

  /// Times of each step count from its own begin; here they follow one another as they ran.
  void keep_timeline(double seconds) {
    Timeline all = gather_timeline(executor_.world(), executor_.timeline());
    if (rank_ != 0) return;
    const Nanoseconds begin = traced_ns_;
    const auto length = static_cast<Nanoseconds>(std::llround(seconds * 1e9));
    traced_ns_ += std::max(length, all.step_ns);
    result_.traced_step_s.push_back(seconds);
    if (begin == 0) {
      result_.timeline = std::move(all);
      return;
    }
    Timeline& kept = result_.timeline;
    NameTable names(kept.names);
    names.rename(all.spans, all.names);
    names.rename(all.host, all.names);
    if (all.streams.size() > kept.streams.size()) kept.streams = all.streams;
    const auto append = [begin](std::vector<Span>& to, std::vector<Span>& from) {
      for (Span& span : from) {
        span.begin_ns += begin;
        span.end_ns += begin;
      }
      to.insert(to.end(), from.begin(), from.end());
    };
    append(kept.spans, all.spans);
    append(kept.host, all.host);
    for (MemorySample& sample : all.memory) {
      sample.at_ns += begin;
      kept.memory.push_back(sample);
    }
    std::stable_sort(kept.spans.begin(), kept.spans.end(), [](const Span& a, const Span& b) {
      return std::tie(a.rank, a.begin_ns) < std::tie(b.rank, b.begin_ns);
    });
    kept.step_ns = std::max(kept.step_ns, all.step_ns);
  }

  /// What tracing cost, from the steps that were traced and those that were not.
  void report_tracing() {
    const StepTracer* tracer = executor_.tracer();
    if (tracer == nullptr || result_.traced_step_s.empty()) return;
    result_.trace_report = tracer->report();
    if (!untraced_s_.empty()) {
      const double traced = upper_median(result_.traced_step_s),
                   untraced = upper_median(untraced_s_);
      result_.trace_report += fmt::format(
          "; a traced step took {:.3f} ms, the median of {} others {:.3f} ms: {:+.1f} %",
          traced * 1e3, untraced_s_.size(), untraced * 1e3, (traced / untraced - 1) * 100);
    }
    note(result_.trace_report);
  }

  void report(StepMetrics metrics) {
    if (options_.annotate) options_.annotate(metrics);
    if (metrics_ && !metrics_->append(metrics)) {
      if (result_.lost_metrics++ == 0) {
        note(fmt::format("{}; the line of step {} is lost, the run goes on", metrics_->why(),
                         metrics.step));
      }
      result_.lost_metrics_why = metrics_->why();
    }
    if (events_ && !events_->append(metrics)) {
      note(events_->why() + "; TensorBoard will see no further steps, the run goes on");
      events_.reset();
    }
    if (observer_ != nullptr) observer_->on_step(metrics);
  }
  void note(const std::string& sentence) {
    if (observer_ != nullptr) observer_->on_note(sentence);
  }

  Executor& executor_;
  const Plan& plan_;
  const Data& data_;
  const TrainOptions& options_;
  TrainObserver* observer_;
  std::int64_t rank_;
  BatchShape shape_;
  DataOrder order_;
  Checkpointer checkpointer_;
  std::unique_ptr<MetricsLog> metrics_;
  std::unique_ptr<EventFile> events_;
  std::unique_ptr<StepWatchdog> watchdog_;
  TrainResult result_;
  std::int64_t sequences_ = 0;
  std::int64_t tokens_ = 0;
  Clock::time_point last_save_{};
  std::int64_t saved_ = 0;  // the step of the last checkpoint begun or resumed from
  std::int64_t bad_in_a_row_ = 0;
  bool exploded_ = false;
  std::vector<double> untraced_s_;  // steps that a tracer did not slow down
  Nanoseconds traced_ns_ = 0;       // when the next traced step begins in the timeline
};

}  // namespace

TrainResult train(Executor& executor, const Plan& plan, const Data& data,
                  const TrainOptions& options, TrainObserver* observer) {
  check_lr_schedule(options.lr);
  return Run(executor, plan, data, options, observer).run();
}

std::filesystem::path checkpoints_folder(const std::filesystem::path& run_folder) {
  return run_folder / "checkpoints";
}

}  // namespace shardwright::exec
