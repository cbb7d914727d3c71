// SPDX-License-Identifier: Apache-2.0
#include <fmt/chrono.h>
#include <fmt/core.h>

#include <ctime>
#include <string>
#include <utility>

#include "cli/build_info.h"
#include "cli/flags/plan_flags.h"
#include "cli/render/html/report_page.h"
#include "cli/render/words/origins.h"
#include "cli/verbs/verbs.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/plan_json.h"
#include "sim/trace/memory_over_time.h"
#include "sim/trace/predicted_step.h"

namespace shardwright::cli {
namespace {

class ReportVerb : public Verb {
 public:
  ReportVerb()
      : Verb("report", "one self-contained HTML file about a plan and what was measured") {}

  void declare_flags(Command& command) override {
    flags_.declare(command);
    command.add("--trace", trace_, "draw this trace of predict --trace, not a new prediction")
        .type_name("FILE");
    command.add("--measured", measured_, "compare with this trace of run --trace")
        .type_name("FILE");
    command.add("--tuning", tuning_, "what tune --json printed: why this plan").type_name("FILE");
    command.add("--out", out_, "the HTML file to write").type_name("FILE").required();
  }

  ExitCode run(const Context& context) override {
    html::Report report;
    std::optional<sim::StepTrace> predicted, measured;
    if (!measured_.empty()) measured = sim::read_step_trace(measured_);
    if (flags_.plan_file || flags_.model || (trace_.empty() && measured_.empty())) {
      predicted = predict(report);
    }
    if (!trace_.empty()) {
      sim::StepTrace drawn = sim::read_step_trace(trace_);
      if (predicted) sim::expect_same_model(drawn, *predicted);
      predicted = std::move(drawn);
    }
    if (predicted) report.strips.push_back(html::strip_of(*predicted, "predicted"));
    if (measured) report.strips.push_back(html::strip_of(*measured, "measured"));
    if (predicted && !predicted->timeline.passes.empty()) report.stages = *predicted;
    if (measured && !measured->timeline.passes.empty()) report.measured_stages = *measured;
    if (predicted && measured) {
      sim::expect_same_model(*measured, *predicted);
      report.comparison = sim::compare_traces(*predicted, *measured);
    }
    if (!tuning_.empty()) {
      report.tuning = read_tuning(tuning_);
      if (report.inputs) expect_same_model(*report.tuning, *report.inputs);
    }
    report.provenance = provenance(report, context);
    write_file_atomically(out_, html::report_page(report));
    notify(fmt::format("The report is in {}; it needs nothing but a browser.", out_));
    return ExitCode::kDone;
  }

 private:
  void expect_same_model(const TuningSummary& tuning, const sim::Job& inputs) const {
    const std::int64_t parameters = count_parameters(inputs.model).total(inputs.model.layers);
    if (!tuning.model ||
        (tuning.model->parameters == parameters && tuning.model->layers == inputs.model.layers)) {
      return;
    }
    throw Error(fmt::format(
        "--tuning {}: is of {} ({} layers, {} parameters), but the report is of {} ({} layers, {} "
        "parameters); expected a tuning of the same model",
        tuning_, tuning.model->name, tuning.model->layers, tuning.model->parameters,
        inputs.model_name, inputs.model.layers, parameters));
  }

  sim::StepTrace predict(html::Report& report) const {
    report.inputs = resolve(flags_);
    const sim::Job& inputs = *report.inputs;
    if (inputs.plans.size() != 1) {
      throw Error(fmt::format("--strategy names {} strategies, but report takes one.",
                              inputs.plans.size()));
    }
    const Plan& plan = inputs.plans.front();
    sim::Predictor predictor(inputs.model, inputs.profile);
    sim::PredictedStep step = sim::predicted_step(predictor, plan);
    const bool pipeline = plan.parallel.pp > 1;
    if (!pipeline) step.timeline.memory = sim::memory_over_time(step.stages.front(), step.timeline);
    sim::StepTrace trace =
        sim::step_trace_of(step.stages, std::move(step.timeline), "the prediction");
    trace.identity = {inputs.model_name, inputs.model_config, plan,
                      inputs.profile.cluster.gpus_per_node};
    // Last, because it predicts other plans and leaves their schedule.
    if (pipeline) {
      report.explanation.emplace().base = std::move(step.prediction);
    } else {
      report.explanation = sim::explain(predictor, plan);
    }
    return trace;
  }

  std::vector<std::pair<std::string, std::string>> provenance(const html::Report& report,
                                                              const Context& context) const {
    const BuildInfo build = build_info();
    std::vector<std::pair<std::string, std::string>> rows = {
        {"Written by",
         fmt::format("shardwright {} ({}, {})", build.version, build.compiler, build.build_type)},
        {"On", fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)))},
        {"Command", context.command_line}};
    if (flags_.plan_file) {
      const PlanDocument document = read_plan(*flags_.plan_file);
      if (!document.command.empty()) {
        rows.emplace_back("The plan is of", fmt::format("{} (shardwright {})", document.command,
                                                        document.tool_version));
      }
    }
    if (!trace_.empty()) rows.emplace_back("Predicted timeline", trace_);
    if (!measured_.empty()) rows.emplace_back("Measured timeline", measured_);
    if (!tuning_.empty()) rows.emplace_back("Search", tuning_);
    if (!report.inputs) return rows;
    const profiles::Profile& profile = report.inputs->profile;
    rows.emplace_back("Profile", fmt::format("cluster {}, GPU {}, framework {}", profile.cluster.id,
                                             profile.cluster.gpu.id, profile.stack.id));
    for (const NumberOrigin& origin : number_origins(profile, report.explanation->base))
      rows.emplace_back(origin.what, origin.words);
    for (const std::string& what : report.explanation->base.extrapolated)
      rows.emplace_back("Outside the fitted range", what);
    return rows;
  }

  PlanFlags flags_;
  std::string trace_, measured_, tuning_, out_;
};

}  // namespace

std::unique_ptr<Verb> make_report_verb() {
  return std::make_unique<ReportVerb>();
}

}  // namespace shardwright::cli
