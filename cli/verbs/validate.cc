// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/render/scores/strangers.h"
#include "cli/render/scores/validation.h"
#include "cli/render/text/json_text.h"
#include "cli/render/text/terminal.h"
#include "cli/verbs/verbs.h"
#include "profiles/data_file.h"
#include "profiles/gpu_cost.h"
#include "profiles/ledger/ledger.h"
#include "profiles/uncertainty/uncertainty.h"
#include "sim/core/base/csv.h"
#include "sim/core/base/error.h"
#include "sim/score/kernel_scores.h"
#include "sim/score/validation.h"
#include "tuner/size/whole_run.h"

namespace shardwright::cli {
namespace {

nlohmann::ordered_json stage_memory_json(const sim::StageMemoryScore& score) {
  nlohmann::ordered_json peaks =
      json_list(score.peaks, [&](const sim::StagePeak& peak) -> nlohmann::ordered_json {
        return {{"id", peak.id},
                {"rank", peak.rank},
                {"stage", peak.stage},
                {"predicted_gib", peak.predicted_gib},
                {"measured_gib", peak.measured_gib},
                {"error", peak.error}};
      });
  return {{"n", score.allocated.n},           {"mape", score.allocated.mape},
          {"median", score.allocated.median}, {"worst", score.allocated.worst},
          {"skipped", score.skipped},         {"peaks", std::move(peaks)}};
}

std::string stage_memory_text(const sim::StageMemoryScore& score) {
  return fmt::format(
      "Stages' memory: {} peaks, mean error {:.1f} %, median {:.1f} %, worst {:.1f} %; {} of runs "
      "without a prediction left out\n",
      score.allocated.n, 100 * score.allocated.mape, 100 * score.allocated.median,
      100 * score.allocated.worst, score.skipped);
}

class ValidateVerb : public Verb {
 public:
  ValidateVerb() : Verb("validate", "predicted against published measurements, row by row") {}

  void declare_flags(Command& command) override {
    command.add_file("--ledger", ledger_,
                     "CSV of published runs to predict (default: the one that ships)");
    command.add_file("--gemm", gemm_, "Also score GEMMs: a CSV of measured times");
    command.add_file("--collectives", collectives_,
                     "Also score NCCL collectives: a CSV of measured times");
    command.add_file("--stage-memory", stage_memory_,
                     "Also score the stages' memory of the ledger's runs: a CSV of measured peaks");
    command.add_file("--gpu-results", gpu_results_,
                     "Also predict the runs of a results file that scripts/gpu_check wrote");
    command
        .add("--set", overrides_, "Override a value of every row's profile by its path, repeatable")
        .type_name("KEY=VALUE");
    command.add(
        "--leave-one-out", leave_one_out_,
        "Also score what was predicted by constants fitted without each run, its cell, and its "
        "source, as recorded by python3 -m profiles.research steps");
    command
        .add_parsed(
            "--whole-runs", [this](const std::string& file) { whole_runs_ = file; },
            "Also score published training runs in GPU hours (default: those that ship)")
        .type_name("FILE")
        .optional_value();
    command.add("--rows", rows_, "Print every row, not only the summary");
    command.add("--json", json_, "Print one JSON document");
  }

  ExitCode run(const Context& context) override {
    // Files first: a wrong one should not cost the time of the others.
    const std::vector<profiles::LedgerRow> rows =
        profiles::load_ledger(ledger_.empty() ? profiles::shipped_ledger().string() : ledger_);
    std::optional<sim::KernelScore> gemm, collectives;
    if (!gemm_.empty()) gemm = sim::score_gemm(CsvTable::load(gemm_), profiles::load_gpu_costs());
    if (!collectives_.empty()) {
      collectives =
          sim::score_collectives(CsvTable::load(collectives_), profiles::load_gpu_costs());
    }
    std::vector<profiles::WholeRun> trainings;
    if (whole_runs_) {
      trainings = profiles::load_whole_runs(
          whole_runs_->empty() ? profiles::shipped_whole_runs().string() : *whole_runs_);
    }
    std::optional<sim::GpuResults> on_gpus;
    if (!gpu_results_.empty()) on_gpus = sim::score_gpu_results(gpu_results_, overrides_);
    const sim::Validation validation = validate(rows, context);
    std::optional<sim::StageMemoryScore> stage_memory;
    if (!stage_memory_.empty()) {
      stage_memory = sim::score_stage_memory(CsvTable::load(stage_memory_), validation);
    }
    const profiles::HeldOutRecord record = recorded();
    std::optional<sim::LeaveOneOut> left_out;
    if (leave_one_out_) left_out = sim::leave_one_out(validation, record, ledger_);
    const sim::ChoiceScore choices = sim::score_choices(validation);
    // Beside the shipped ledger: they are the same whatever other table is asked about.
    std::optional<sim::Validation> strangers;
    if (ledger_.empty()) strangers = validate(profiles::load_strangers(), context);
    const std::vector<sim::FrameworkScore> frameworks = score_frameworks(validation, record.runs);
    profiles::Production production;
    std::optional<tuner::WholeRunScore> whole;
    if (whole_runs_) {
      production = profiles::load_production(profiles::shipped_production());
      whole = score_trainings(trainings, production, context);
    }
    const std::vector<sim::LayerPeriod> periods = sim::predict_layer_periods(
        CsvTable::load(profiles::data_dir() / "published" / "layer_periods.csv"), overrides_);

    if (json_) {
      nlohmann::ordered_json document = validation_json(validation);
      if (left_out) {
        document["summary"].update(leave_one_out_json(*left_out, record));
      }
      document["summary"]["layer_periods"] = layer_periods_json(periods);
      if (gemm) document["summary"]["gemm"] = kernel_score_json(*gemm);
      if (stage_memory) document["summary"]["stage_memory"] = stage_memory_json(*stage_memory);
      if (collectives) document["summary"]["collectives"] = kernel_score_json(*collectives);
      add_choices_and_strangers(choices, strangers, document["summary"]);
      document["summary"]["by_gpu"] = by_gpu_json(validation);
      document["summary"]["by_framework"] = by_framework_json(frameworks);
      if (on_gpus) document["gpu_results"] = gpu_results_json(*on_gpus);
      if (whole) {
        document["whole_runs"] = whole_runs_json(*whole);
        document["summary"]["whole_runs"] = whole_runs_summary_json(*whole, production);
      }
      fmt::print(results(), "{}\n", json_text(document));
      return ExitCode::kDone;
    }
    fmt::print(results(), "{}\n", by_framework_text(frameworks, context.out).substr(1));
    fmt::print(results(), "{}", validation_text(validation, rows_, context.out));
    fmt::print(results(), "{}", by_gpu_text(validation, context.out));
    fmt::print(results(), "{}", choices_and_strangers_text(choices, strangers, context.out));
    if (left_out)
      fmt::print(results(), "{}", leave_one_out_text(*left_out, record, rows_, context.out));
    fmt::print(results(), "{}", layer_periods_text(periods, context.out));
    if (gemm) fmt::print(results(), "{}", kernel_score_text("GEMMs", *gemm, context.out));
    if (collectives) {
      fmt::print(results(), "{}", kernel_score_text("Collectives", *collectives, context.out));
    }
    if (whole) fmt::print(results(), "{}", whole_runs_text(*whole, production, context.out));
    if (on_gpus) fmt::print(results(), "{}", gpu_results_text(*on_gpus, context.out));
    if (stage_memory) fmt::print(results(), "{}", stage_memory_text(*stage_memory));
    return ExitCode::kDone;
  }

 private:
  static void add_choices_and_strangers(const sim::ChoiceScore& choices,
                                        const std::optional<sim::Validation>& strangers,
                                        nlohmann::ordered_json& summary) {
    summary["choice"] = choices_json(choices);
    if (!strangers) return;
    summary["strangers"] = strangers_json(*strangers);
    summary["as_strangers"] = novelty_coverage_json(profiles::novelty_widths());
  }

  std::string choices_and_strangers_text(const sim::ChoiceScore& choices,
                                         const std::optional<sim::Validation>& strangers,
                                         const Terminal& out) const {
    std::string text = choices_text(choices, rows_, out);
    if (strangers) {
      text += novelty_coverage_text(profiles::novelty_widths(), out);
      text += strangers_text(*strangers, out);
    }
    return text;
  }

  /// What was predicted without each run, beside a user's ledger or as it ships, which knows
  /// nothing of overridden values.
  profiles::HeldOutRecord recorded() const {
    if (!overrides_.empty()) {
      if (!leave_one_out_) return {};
      throw Error(
          "--leave-one-out was recorded with the values that ship, and --set changes one, expected "
          "one of the two.");
    }
    const std::string own = sim::left_out_file(ledger_);
    return profiles::load_held_out(
        !ledger_.empty() && std::filesystem::exists(own) ? own : profiles::shipped_residuals());
  }

  sim::Validation validate(const std::vector<profiles::LedgerRow>& rows,
                           const Context& context) const {
    Progress progress(context.err, "validate", static_cast<std::int64_t>(rows.size()));
    sim::ValidationOptions options;
    options.overrides = overrides_;
    options.progress = [&progress](std::int64_t done) { progress.update(done); };
    return sim::validate(rows, options);
  }

  tuner::WholeRunScore score_trainings(const std::vector<profiles::WholeRun>& trainings,
                                       const profiles::Production& production,
                                       const Context& context) const {
    Progress progress(context.err, "whole runs", static_cast<std::int64_t>(trainings.size()));
    tuner::WholeRunOptions options;
    options.overrides = overrides_;
    options.progress = [&progress](std::int64_t done) { progress.update(done); };
    return tuner::score_whole_runs(trainings, production, options);
  }

  std::string ledger_;
  std::string gemm_;
  std::string collectives_, stage_memory_, gpu_results_;
  std::optional<std::string> whole_runs_;  // empty: the table that ships
  std::vector<std::string> overrides_;
  bool leave_one_out_ = false;
  bool rows_ = false;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_validate_verb() {
  return std::make_unique<ValidateVerb>();
}

}  // namespace shardwright::cli
