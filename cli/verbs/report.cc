// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/flags/plan_flags.h"
#include "cli/render/answer_page.h"
#include "cli/render/drawn_step.h"
#include "cli/render/explanation.h"
#include "cli/render/measured/trace_comparison.h"
#include "cli/render/prediction.h"
#include "cli/render/tuning_file.h"
#include "cli/verbs/verbs.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/plan_json.h"
#include "sim/explain/explain.h"
#include "sim/trace/trace_comparison.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

class ReportVerb : public Verb {
 public:
  ReportVerb()
      : Verb("report", "one self-contained HTML file about a plan and what was measured") {}

  void declare_flags(Command& command) override {
    flags_.declare(command);
    command.add_file("--trace", trace_, "draw this trace of predict --trace, not a new prediction");
    command.add_file("--measured", measured_, "compare with this trace of run --trace");
    command.add_file("--tuning", tuning_, "what tune --json printed: why this plan");
    command.add_file("--out", out_, "the HTML file to write").required().writes();
  }

  ExitCode run(const Context& context) override {
    Json page{{"schema", "shardwright.report/1.0"},
              {"answer", nullptr},
              {"timelines", Json::array()},
              {"provenance", page_provenance(context.command_line)}};
    std::string title = "timeline of a step";
    std::optional<sim::StepTrace> measured;
    if (!measured_.empty()) measured = sim::read_step_trace(measured_);
    std::vector<sim::StepTrace> steps;
    if (flags_.plan_file || flags_.model || (trace_.empty() && measured_.empty())) {
      const sim::Job inputs = resolve(flags_);
      if (inputs.plans.size() > 1 && !(trace_.empty() && measured_.empty())) {
        throw Error(fmt::format(
            "--strategy names {} strategies, but report takes one with --trace or --measured.",
            inputs.plans.size()));
      }
      const Plan& plan = inputs.plans.front();
      title =
          fmt::format("{} on {} × {}", inputs.model_name, plan.gpus, inputs.profile.cluster.gpu.id);
      page["answer"] = predict(inputs, steps);
      page["usd_per_gpu_hour"] = inputs.profile.cluster.usd_per_gpu_hour;
      if (!tuning_.empty()) page["tuning"] = tuning_of(inputs);
    } else if (!tuning_.empty()) {
      page["tuning"] = read_tuning(tuning_).file.root().raw();
    }
    if (!trace_.empty()) {
      sim::StepTrace drawn = sim::read_step_trace(trace_);
      if (!steps.empty()) sim::expect_same_model(drawn, steps.front());
      steps.clear();
      steps.push_back(std::move(drawn));
    }
    for (const sim::StepTrace& step : steps) page["timelines"].push_back(drawn_step(step));
    if (measured) page["measured"] = drawn_step(*measured);
    if (measured && !steps.empty()) {
      sim::expect_same_model(*measured, steps.front());
      page["comparison"] = trace_comparison_json(sim::compare_traces(steps.front(), *measured), 0);
    }
    add_files(page["provenance"]);
    write_file_atomically(out_, answer_page(title, page));
    notify(fmt::format("The report is in {}; it needs nothing but a browser.", out_));
    return ExitCode::kDone;
  }

 private:
  /// What `predict --explain --json` prints; `steps` gets a timeline of each plan.
  static Json predict(const sim::Job& inputs, std::vector<sim::StepTrace>& steps) {
    sim::Predictor predictor(inputs.model, inputs.profile);
    std::vector<sim::Prediction> predictions;
    for (const Plan& plan : inputs.plans) {
      sim::PredictedStep step = sim::predicted_step(predictor, plan);
      if (step.stages.size() == 1)
        step.timeline.memory = sim::memory_over_time(step.stages.front(), step.timeline);
      steps.push_back(sim::step_trace_of(step.stages, std::move(step.timeline), "the prediction"));
      steps.back().identity = {inputs.model_name, inputs.model_config, plan,
                               inputs.profile.cluster.gpus_per_node};
      predictions.push_back(predictor.predict(plan));
      predictions.back().routing = sim::routing_price(predictor, predictions.back());
    }
    const bool one = predictions.size() == 1;
    Json document =
        one ? prediction_json(inputs, predictions.front()) : comparison_json(inputs, predictions);
    for (std::size_t i = 0; i < predictions.size(); ++i) {
      Json& explanation = (one ? document : document["predictions"][i])["explanation"];
      explanation = explanation_json(inputs.model, sim::explain(predictor, inputs.plans[i]));
    }
    return document;
  }

  nlohmann::json tuning_of(const sim::Job& inputs) const {
    const TuningFile tuning = read_tuning(tuning_);
    const std::int64_t parameters = count_parameters(inputs.model).total(inputs.model.layers);
    if (!tuning.model ||
        (tuning.model->parameters == parameters && tuning.model->layers == inputs.model.layers)) {
      return tuning.file.root().raw();
    }
    throw Error(fmt::format(
        "--tuning {}: is of {} ({} layers, {} parameters), but the report is of {} ({} layers, {} "
        "parameters); expected a tuning of the same model",
        tuning_, tuning.model->name, tuning.model->layers, tuning.model->parameters,
        inputs.model_name, inputs.model.layers, parameters));
  }

  void add_files(Json& provenance) const {
    if (flags_.plan_file) {
      const PlanDocument document = read_plan(*flags_.plan_file);
      if (!document.command.empty()) {
        provenance.push_back({"The plan is of", fmt::format("{} (shardwright {})", document.command,
                                                            document.tool_version)});
      }
    }
    if (!trace_.empty()) provenance.push_back({"Predicted timeline", trace_});
    if (!measured_.empty()) provenance.push_back({"Measured timeline", measured_});
    if (!tuning_.empty()) provenance.push_back({"Search", tuning_});
  }

  PlanFlags flags_;
  std::string trace_, measured_, tuning_, out_;
};

}  // namespace

std::unique_ptr<Verb> make_report_verb() {
  return std::make_unique<ReportVerb>();
}

}  // namespace shardwright::cli
