// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/interrupt.h"
#include "cli/machine/host_profile.h"
#include "cli/measure/measuring_site.h"
#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/words/plan.h"
#include "cli/run/job_facts.h"
#include "cli/run/options.h"
#include "cli/run/output_folder.h"
#include "cli/run/predicted.h"
#include "cli/run/printer.h"
#include "cli/run/rank_processes.h"
#include "cli/run/ranks.h"
#include "cli/run/tokenizer.h"
#include "cli/text.h"
#include "cli/verbs/verbs.h"
#include "exec/train/train_state.h"
#include "profiles/profile.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/base/read_file.h"
#include "sim/core/chrome_trace.h"
#include "sim/job.h"
#include "sim/trace/observations.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostTraceBytes = std::size_t{1} << 34;

/// What calibrate and compare need to know of a trace besides its spans.
TraceNotes trace_notes(const RunOptions& options, const Predicted& predicted,
                       const exec::TrainResult& train) {
  TraceNotes notes{{"tool", "shardwright run"}};
  for (auto& note :
       notes_of({options.model_name, options.config, options.plan, predicted.gpus_per_node})) {
    notes.push_back(std::move(note));
  }
  TraceOrigin origin = options.device == DeviceKind::kCuda
                           ? gpu_origin(options.gpus, options.plan.gpus)
                       : options.network.empty() ? host_origin(options.threads, options.streams)
                                                 : virtual_origin();
  origin.step_s = train.traced_step_s;
  origin.transport = name_of(options.transport);
  for (auto& note : notes_of(origin)) notes.push_back(std::move(note));
  notes.emplace_back("ranks", fmt::format("{}", options.plan.gpus));
  return notes;
}

/// What a run may go on from.
struct Resumable {
  std::vector<fs::path> checkpoints;         // the best first
  std::unique_ptr<exec::Checkpoint> newest;  // of those that can be opened
};

/// Whether files are as they were written is for all ranks to see (exec::choose_checkpoint).
Resumable find_resume(RunOptions& options) {
  Resumable found;
  if (options.resume.empty()) return found;
  if (options.resume != "auto") {
    found.checkpoints = {options.resume};
    found.newest = std::make_unique<exec::Checkpoint>(options.resume);
    return found;
  }
  found.checkpoints = exec::list_checkpoints(exec::checkpoints_folder(options.out));
  for (const fs::path& path : found.checkpoints) {
    try {
      found.newest = std::make_unique<exec::Checkpoint>(path);
      return found;
    } catch (const Error&) {  // the ranks will find and tell the same
    }
  }
  if (!found.checkpoints.empty()) {
    throw Error(fmt::format("{}: none of {} checkpoints is whole, expected one to resume from",
                            exec::checkpoints_folder(options.out).string(),
                            found.checkpoints.size()));
  }
  options.notes.push_back("there is no checkpoint yet, so the run starts from the beginning");
  return found;
}

/// What ran, and what the prediction counted on; null where there is but one.
nlohmann::ordered_json attention_json(const AttentionNote& attention,
                                      const std::optional<sim::PlannedAttention>& planned) {
  if (attention.kernel.empty()) return nullptr;
  return {{"kernel", attention.kernel},
          {"library", text_or_null(attention.library)},
          {"why", attention.why},
          {"planned", planned ? nlohmann::ordered_json(name_of(planned->form))
                              : nlohmann::ordered_json(nullptr)}};
}

class RunVerb : public Verb {
 public:
  RunVerb() : Verb("run", "trains for real with a plan; trace, metrics, checkpoints") {}

  void declare_flags(Command& command) override {
    for (const char* flag :
         {"--stack", "--task", "--set", "--node-network", "--power-limit-watts"}) {
      const auto refuse = [flag](const std::string& value) {
        throw Error(
            fmt::format("{} is '{}', but run trains every weight with the framework native "
                        "on this machine; predict, tune and size take it, and export writes "
                        "plans for other frameworks",
                        flag, value),
            ExitCode::kUsage);
      };
      command.add_parsed(flag, refuse, "").group("");
    }
    declare_setting(command,
                    {kConfig, "FILE", "",
                     "a run file with any of these settings, one KEY = VALUE a line", "What"});
    for (const SettingInfo& info : setting_table()) declare_setting(command, info);
    command.add("--json", json_, "print a summary as one JSON document; steps go to stderr");
    command.add("--show-settings", show_settings_,
                "print every setting and its origin as a run file, and do nothing else");
  }

  ExitCode run(const Context& context) override {
    settings_.resolve(process_environment());
    RunOptions options = run_options(settings_);
    if (show_settings_) {
      fmt::print(results(), "{}", settings_.ini("settings of shardwright run"));
      return ExitCode::kDone;
    }
    if (options.launch.launcher == exec::Launcher::kRun) end_with_parent();
    if (options.has_processes &&
        starts_processes(options.transport, options.launch, options.plan.gpus)) {
      return ExitCode{run_processes(own_words(), static_cast<int>(options.plan.gpus))};
    }
    Predicted predicted = lower_and_predict(options, false);
    const auto require_memory = [&] {
      check_memory_here(execution_offer(), {options.device, options.transport, options.launch},
                        options.plan, predicted.stages);
    };
    if (options.until_allocation) {
      // Ranks of virtual clocks stand for machines that are not here.
      if (options.network.empty()) require_memory();
      decide_job(options, settings_, nullptr);
      return allocate(context, options, predicted.stages);
    }
    apply_tokenizer(options, settings_);
    exec::Data data = exec::open_data(options.data);
    decide_epochs(settings_, options, data.train->sequences());
    if (data.train->packs_documents()) predicted = lower_and_predict(options, true);
    const bool shown = options.launch.rank == 0;
    std::optional<OutputLock> lock;
    if (shown) {
      try_trace(options, settings_);
      lock.emplace(options.out);
      require_own_folders(options);
    }
    const Resumable resumable = find_resume(options);
    if (resumable.newest && keep_sum_shape(options, *resumable.newest))
      predicted = lower_and_predict(options, data.train->packs_documents());
    std::unique_ptr<exec::SafetensorsModel> weights;
    if (!resumable.newest && !options.weights.empty()) {
      weights = std::make_unique<exec::SafetensorsModel>(options.weights);
      options.train.weights = weights.get();
      options.train.weights_name = options.weights;
    }
    choose_trace_step(options, resumable.newest.get());
    decide_job(options, settings_, &data);
    if (resumable.newest) require_same_job(options, *resumable.newest);
    require_memory();
    if (shown) {
      require_room(options);
      try_outputs(options);
      options.on_agreement = [&] { begin_folder(options, predicted); };
    }
    const RunReference reference{predicted.step_s, predicted.utilisation,
                                 fullest_bytes(predicted.stages)};
    options.train.annotate = [reference](exec::StepMetrics& metrics) {
      metrics.mfu = reference.utilisation.mfu(metrics.step_time_s);
      metrics.share_of_best_product = reference.utilisation.of_products(metrics.step_time_s);
      metrics.predicted_step_time_s = reference.predicted_s;
    };
    RunPrinter printer(json_ ? messages() : results(), json_ ? context.err : context.out, shown,
                       options.log_every, reference);
    for (const std::string& note : options.notes) printer.on_note(note);
    for (const std::string& note : model_notes(options.model, options.plan.seq_len))
      printer.on_note(note);
    const auto on_ready = [&](const AttentionNote& attention, const exec::Checkpoint* resume) {
      say(messages(), run_head(options, data, reference, attention));
      if (resume == nullptr) return;
      printer.on_note(fmt::format("resumed from {}", resume->folder().string()));
      for (const std::string& note : resume_notes(options, *resume)) printer.on_note(note);
    };

    const auto begin = std::chrono::steady_clock::now();
    const Interrupt interrupt(Wishes::kOfARun);
    const IgnoredPipes pipes;
    options.train.stop = &interrupt.flag();
    const RunOutcome outcome =
        run_ranks(options, predicted.stages, data, resumable.checkpoints, printer, on_ready);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (!shown) return outcome.train.interrupted ? kStopped : ExitCode::kDone;
    return finish(options, predicted, outcome, printer, seconds);
  }

 private:
  void declare_setting(Command& command, const SettingInfo& info) {
    const std::string fallback = info.fallback;
    command
        .add_parsed(
            fmt::format("--{}", info.key),
            [this, key = std::string(info.key)](const std::string& value) {
              settings_.set_flag(key, value);
            },
            fallback.empty() ? info.help : fmt::format("{} (default: {})", info.help, fallback))
        .type_name(info.type)
        .group(info.group);
  }

  ExitCode allocate(const Context& context, const RunOptions& options,
                    const std::vector<Schedule>& stages) const {
    const bool shown = options.launch.rank == 0;
    RunPrinter printer(messages(), context.err, shown, options.log_every, {});
    allocate_ranks(options, stages, printer);
    const Bytes most = fullest_bytes(stages);
    if (shown && json_) {
      fmt::print(results(), "{}\n",
                 json_text({{"schema", "shardwright.run/1.0"},
                            {"planned_memory_bytes", most},
                            {"plan", plan_to_json(options.plan)}}));
    } else if (shown) {
      fmt::print(results(), "memory is allocated on {}: {}, at most {} each, as planned\n",
                 name_of(options.device), counted(options.plan.gpus, "rank"), bytes(most));
    }
    return ExitCode::kDone;
  }

  static void choose_trace_step(RunOptions& options, const exec::Checkpoint* resume) {
    if (options.trace.empty()) {
      options.train.trace_step = 0;
    } else if (options.train.trace_step == 0) {
      // The first steps touch memory for the first time.
      const std::int64_t done = resume != nullptr ? resume->manifest().step : 0;
      options.train.trace_step = std::min(done + 3, options.train.lr.total_steps);
    }
  }

  static PlanDocument document_of(const RunOptions& options, const Predicted& predicted) {
    sim::Job job;
    job.model_name = options.model_name;
    job.model_config = options.config;
    job.cluster_name = predicted.cluster.empty() ? kHostCluster : predicted.cluster;
    job.cluster_file = predicted.cluster_file;
    job.overrides = options.overrides;
    PlanDocument document = sim::document_of(job, options.plan);
    // Its values are this machine's, which no file that ships has.
    if (!predicted.cluster.empty()) document.cluster_file = profiles::to_json(job.cluster_file);
    document.tool_version = options.train.tool_version;
    return document;
  }

  void begin_folder(const RunOptions& options, const Predicted& predicted) {
    remove_finished_model(options);
    const fs::path plan = fs::path(options.out) / "plan.json";
    require_regular_or_none(plan);
    write_plan(plan, document_of(options, predicted));
    settings_.decide("plan", plan.string(), "this run");
    write_file_atomically(
        fs::path(options.out) / "run.ini",
        settings_.ini(fmt::format("written by shardwright run; --config takes it\n# job {}",
                                  options.train.job_hash)),
        OutputPlace::kInFolder);
  }

  ExitCode finish(const RunOptions& options, const Predicted& predicted, const RunOutcome& outcome,
                  const RunPrinter& printer, double seconds) const {
    const exec::TrainResult& train = outcome.train;
    fs::path checkpoint;
    if (train.saved_step >= 0) {
      checkpoint = exec::checkpoints_folder(options.out) / exec::checkpoint_name(train.saved_step);
    } else {
      checkpoint = outcome.resumed;
    }
    const fs::path model = model_folder(options);
    // What cannot be written now must not cost what comes after it.
    std::optional<Error> trouble;
    const auto attempt = [&trouble](const auto& write) {
      try {
        write();
        return true;
      } catch (const Error& error) {
        if (!trouble) trouble = error;
        return false;
      }
    };
    const bool complete = options.train.saves && !train.interrupted && train.failure.empty() &&
                          !train.save_failed && attempt([&] {
                            exec::export_model(exec::Checkpoint(checkpoint), model);
                            copy_tokenizer(model_sources(options), model);
                          });
    attempt([&] { write_trace(options, predicted, train); });
    if (json_) {
      print_json(options, predicted, outcome, printer, seconds, checkpoint,
                 complete ? model : fs::path());
    }
    print_summary(options, outcome, seconds, checkpoint, complete ? model : fs::path());
    print_deviation(options, predicted, printer.median_step_s());
    if (!train.failure.empty()) {
      throw Error(fmt::format("the run gave up at {}", train.failure), ExitCode::kFailed);
    }
    if (train.save_failed) {
      throw Error("the last checkpoint could not be written", ExitCode::kFailed);
    }
    if (trouble) throw Error(*trouble);
    if (train.lost_metrics > 0) {
      throw Error(
          fmt::format("{}: {} of its lines are lost", train.lost_metrics_why, train.lost_metrics),
          ExitCode::kFailed);
    }
    return train.interrupted ? kStopped : ExitCode::kDone;
  }

  static void write_trace(const RunOptions& options, const Predicted& predicted,
                          const exec::TrainResult& train) {
    if (!options.trace.empty() && !train.timeline.spans.empty()) {
      const fs::path trace = fs::path(options.out) / "trace.json";
      require_regular_or_none(trace);
      Timeline timeline = train.timeline;
      sim::add_measured_passes(predicted.stages,
                               RankMesh(options.plan, predicted.stages.front().shard_ranks()),
                               timeline);
      write_chrome_trace(
          trace, std::vector<TracedTimeline>{{"measured", predicted.stages.data(), &timeline}},
          trace_notes(options, predicted, train));
      if (fs::absolute(options.trace).lexically_normal() !=
          fs::absolute(trace).lexically_normal()) {
        write_file_atomically(options.trace, read_file(trace, kMostTraceBytes));
      }
    }
  }

  static void print_json(const RunOptions& options, const Predicted& predicted,
                         const RunOutcome& outcome, const RunPrinter& printer, double seconds,
                         const fs::path& checkpoint, const fs::path& model) {
    const exec::TrainResult& train = outcome.train;
    const double median = printer.median_step_s();
    const auto tokens = static_cast<double>(sequences_of_step(options.plan) * options.plan.seq_len);
    fmt::print(results(), "{}\n",
               json_text({{"schema", "shardwright.run/1.0"},
                          {"first_step", train.first_step},
                          {"last_step", train.last_step},
                          {"loss", train.loss},
                          {"eval_loss", or_null(train.eval_loss)},
                          {"skipped_steps", train.skipped_steps},
                          {"interrupted", train.interrupted},
                          {"failure", train.failure},
                          {"seconds", seconds},
                          {"median_step_time_s", median},
                          {"tokens_per_s", median > 0 ? tokens / median : 0},
                          {"predicted_step_time_s", or_null(predicted.step_s)},
                          {"mfu", or_null(predicted.utilisation.mfu(median))},
                          {"predicted_for", options.predicted_for},
                          {"planned_memory_bytes", outcome.planned_bytes},
                          {"peak_memory_bytes", outcome.peak_bytes},
                          {"attention", attention_json(outcome.attention, predicted.attention)},
                          {"plan", plan_to_json(options.plan)},
                          {"out", options.out},
                          {"checkpoint", text_or_null(checkpoint.string())},
                          {"model", text_or_null(model.string())},
                          {"trace", text_or_null(options.trace)},
                          {"trace_report", train.trace_report}}));
  }

  static void print_summary(const RunOptions& options, const RunOutcome& outcome, double seconds,
                            const fs::path& checkpoint, const fs::path& model) {
    const exec::TrainResult& train = outcome.train;
    say(messages(), fmt::format("{} {} after {}; memory of a rank {}, {}",
                                train.interrupted ? "interrupted at step" : "step", train.last_step,
                                quantity(seconds, "s"), bytes(outcome.peak_bytes),
                                outcome.peak_bytes == outcome.planned_bytes
                                    ? "exactly as planned"
                                    : fmt::format("planned {}", bytes(outcome.planned_bytes))));
    const auto shown = [](const std::string& line) { say(messages(), printable(line, true)); };
    if (!checkpoint.empty()) shown(fmt::format("checkpoint: {}", checkpoint.string()));
    if (!model.empty()) shown(fmt::format("model: {}", model.string()));
    if (!options.trace.empty()) shown(fmt::format("trace: {}", options.trace));
    if (train.interrupted && options.train.saves) {
      shown(
          fmt::format("to go on: shardwright run --config {}/run.ini --resume auto", options.out));
    }
  }

  static void print_deviation(const RunOptions& options, const Predicted& predicted,
                              double median_s) {
    if (!predicted.step_s || median_s <= 0) return;
    say(messages(),
        fmt::format("a step took {} (median), {} of {} predicted for {}", quantity(median_s, "s"),
                    deviation_text(median_s, *predicted.step_s), quantity(*predicted.step_s, "s"),
                    options.predicted_for));
  }

  RunSettings settings_;
  bool json_ = false;
  bool show_settings_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_run_verb() {
  return std::make_unique<RunVerb>();
}

}  // namespace shardwright::cli
