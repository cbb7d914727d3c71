// SPDX-License-Identifier: Apache-2.0
#include <fmt/chrono.h>
#include <fmt/core.h>

#include <ctime>
#include <string>
#include <utility>

#include "cli/build_info.h"
#include "cli/flags/plan_flags.h"
#include "cli/render/html/report_page.h"
#include "cli/trace/memory_over_time.h"
#include "cli/trace/timeline_trace.h"
#include "cli/verbs/verbs.h"
#include "sim/core/atomic_file.h"
#include "sim/core/plan_json.h"

namespace shardwright::cli {
namespace {

class ReportVerb : public Verb {
 public:
  std::string name() const override { return "report"; }
  std::string summary() const override {
    return "one self-contained HTML file about a plan and what was measured";
  }

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
    std::optional<ReadTrace> predicted;
    std::string predicted_name = "the prediction";
    if (flags_.plan_file || flags_.model || (trace_.empty() && measured_.empty())) {
      predicted = predict(report);
    }
    if (!trace_.empty()) {
      predicted = read_chrome_trace(trace_);
      predicted_name = trace_;
      report.memory.clear();
    }
    if (predicted) {
      report.strips.push_back(html::strip_of(*predicted, predicted_name, "predicted"));
    }
    if (!measured_.empty()) {
      const ReadTrace measured = read_chrome_trace(measured_);
      report.strips.push_back(html::strip_of(measured, measured_, "measured"));
      if (predicted)
        report.comparison = compare_traces(*predicted, predicted_name, measured, measured_);
    }
    if (!tuning_.empty()) report.tuning = read_tuning(tuning_);
    report.provenance = provenance(report, context);
    write_file_atomically(out_, html::report_page(report));
    fmt::print(stderr, "The report is in {}; it needs nothing but a browser.\n", out_);
    return ExitCode::kDone;
  }

 private:
  ReadTrace predict(html::Report& report) const {
    report.inputs = resolve(flags_);
    if (report.inputs->plans.size() != 1) {
      throw Error(fmt::format("--strategy names {} strategies, but report takes one.",
                              report.inputs->plans.size()));
    }
    const Plan& plan = report.inputs->plans.front();
    sim::Predictor predictor(report.inputs->model, report.inputs->profile);
    Timeline timeline;
    predictor.predict(plan, {.timeline = &timeline});
    ReadTrace trace = trace_of(predictor.schedule(), timeline);
    report.memory = memory_over_time(predictor.schedule(), timeline);
    report.explanation = sim::explain(predictor, plan);
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
    rows.emplace_back("Profile", fmt::format("cluster {}, GPU {}, stack {}", profile.cluster.id,
                                             profile.cluster.gpu.id, profile.stack.id));
    if (profile.uncertainty.known()) {
      rows.emplace_back(
          "Interval", fmt::format("{} ({})", profile.uncertainty.source, profile.uncertainty.date));
    }
    if (!profile.cluster.price_note.empty()) rows.emplace_back("Price", profile.cluster.price_note);
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
