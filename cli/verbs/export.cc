// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/build_info.h"
#include "cli/export/settings.h"
#include "cli/export/told.h"
#include "cli/flags/plan_flags.h"
#include "cli/memory/predicted_snapshot.h"
#include "cli/render/prediction.h"
#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/words/plan.h"
#include "cli/verbs/verbs.h"
#include "profiles/profile.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/plan_json.h"
#include "sim/predict.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string need_words(const sim::Prediction& prediction) {
  return fmt::format("{} a step and {} of memory", duration(prediction.time.iteration_s),
                     needed_words(prediction.memory));
}

class ExportVerb : public Verb {
 public:
  ExportVerb()
      : Verb("export",
             "a plan as settings for torchtitan, Accelerate, axolotl, torchtune, Megatron and "
             "others") {}

  void declare_flags(Command& command) override {
    flags_.declare(command);
    std::vector<std::string> names;
    for (const Trainer& trainer : trainers()) names.emplace_back(trainer.name);
    names.emplace_back(kSnapshot);
    command
        .add("--format", format_,
             "the trainer whose settings to write, or predicted memory for PyTorch's viewer")
        .type_name(fmt::format("{}", fmt::join(names, "|")))
        .required();
    command.add_file("--out", out_, "write the settings into a file (default: to stdout)").writes();
    command.add("--json", json_, "print one JSON document with settings and remarks");
  }

  ExitCode run(const Context& context) override {
    if (format_ == kSnapshot) return write_snapshot();
    const Trainer& trainer = trainer_named(format_);
    const sim::Job inputs = resolve(flags_);
    tell_notes(context.err, model_notes(inputs.model, inputs.plans.front().seq_len));
    const Plan& plan = only_plan(inputs, name());
    const sim::Prediction planned = sim::predict(inputs.model, inputs.profile, plan);
    const TrainerSettings settings = trainer.settings(inputs, plan);
    const AsRun as_run = predict_as_run(inputs, settings);
    const std::vector<std::string> predicted = prediction_sentences(trainer, planned, as_run);
    std::vector<std::string> origin = {
        fmt::format("{} {}, written by shardwright {} export.", trainer.title, trainer.what,
                    build_info().version),
        fmt::format("{} on {} x {} ({}): {}.", inputs.model_name, plan.gpus,
                    inputs.profile.cluster.gpu.id, inputs.cluster_name, plan_words(plan))};
    origin.insert(origin.end(), predicted.begin(), predicted.end());
    const std::string text = trainer_file(trainer, settings, origin).text();
    if (!out_.empty()) write_file_atomically(out_, text);
    if (json_) {
      print_json(trainer, settings, text, as_run);
    } else if (out_.empty()) {
      fmt::print(results(), "{}", text);
    }
    tell(context.err, settings, predicted);
    return ExitCode::kDone;
  }

 private:
  static constexpr const char* kSnapshot = "memory-snapshot";

  ExitCode write_snapshot() const {
    if (out_.empty() || json_) {
      throw Error("--format memory-snapshot writes a pickle: give --out FILE and leave out --json.",
                  ExitCode::kUsage);
    }
    const sim::Job inputs = resolve(flags_);
    write_file_atomically(out_, predicted_snapshot(inputs, inputs.plans.front()));
    notify(fmt::format("The snapshot is in {}; pytorch.org/memory_viz draws it.", out_));
    return ExitCode::kDone;
  }

  static std::vector<std::string> prediction_sentences(const Trainer& trainer,
                                                       const sim::Prediction& planned,
                                                       const AsRun& as_run) {
    std::vector<std::string> sentences = {
        fmt::format("Predicted for the plan: {}.", need_words(planned))};
    if (!as_run.prediction) {
      sentences.push_back(fmt::format("What {} makes of these settings cannot be predicted: {}",
                                      trainer.title, as_run.refusal));
      return sentences;
    }
    const sim::Prediction& run = *as_run.prediction;
    sentences.push_back(
        fmt::format("Predicted for {} with these settings ({}, framework {}): {}{}.", trainer.title,
                    plan_words(run.plan), run.plan.stack, need_words(run),
                    run.memory.verdict == sim::MemoryVerdict::kDoesNotFit ? ", which does not fit"
                    : run.memory.verdict == sim::MemoryVerdict::kTight    ? ", which is tight"
                                                                          : ""));
    return sentences;
  }

  void tell(const Terminal& err, const TrainerSettings& settings,
            const std::vector<std::string>& predicted) const {
    const auto print = [&](const std::string& text) {
      fmt::print(messages(), "{}", paragraph(text, err));
    };
    for (const Remark& remark : settings.remarks) {
      if (remark.lost) print("Not expressed: " + remark_text(remark));
    }
    for (const std::string& sentence : predicted) print(sentence);
    if (!out_.empty()) print(fmt::format("The settings are in {}.", out_));
  }

  void print_json(const Trainer& trainer, const TrainerSettings& settings, const std::string& text,
                  const AsRun& as_run) const {
    Json remarks = json_list(settings.remarks, [&](const Remark& remark) -> Json {
      return {{"knob", remark.knob}, {"sentence", remark.sentence}, {"expressed", !remark.lost}};
    });
    Json run{{"plan", plan_to_json(settings.as_run)}, {"set", as_run.inputs.overrides}};
    run["prediction"] =
        as_run.prediction ? prediction_json(as_run.inputs, *as_run.prediction) : Json(nullptr);
    if (!as_run.prediction) run["refusal"] = as_run.refusal;
    const Json document{{"schema", "shardwright.export/1.0"},
                        {"format", trainer.name},
                        {"settings", text},
                        {"out", text_or_null(out_)},
                        {"remarks", std::move(remarks)},
                        {"as_run", std::move(run)}};
    fmt::print(results(), "{}\n", json_text(document));
  }

  PlanFlags flags_;
  std::string format_, out_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_export_verb() {
  return std::make_unique<ExportVerb>();
}

}  // namespace shardwright::cli
