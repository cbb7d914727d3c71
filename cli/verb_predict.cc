#include "cli/verb_predict.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/plan_flags.h"
#include "cli/render/explanation.h"
#include "cli/render/json_text.h"
#include "cli/render/prediction.h"
#include "cli/trace_file.h"
#include "sim/explain.h"
#include "sim/predict.h"

namespace shardwright::cli {
namespace {

class PredictVerb : public Verb {
 public:
  std::string name() const override { return "predict"; }
  std::string summary() const override {
    return "memory, time and a timeline for one plan, or several side by side";
  }

  void declare_flags(CLI::App& command) override {
    flags_.declare(command);
    command.add_flag("--json", json_, "print one JSON document");
    command.add_flag("--explain", explain_,
                     "say what bounds each part of the step and what one change would buy");
    command.add_option("--trace", trace_, "write a Chrome trace of the step, for Perfetto")
        ->type_name("FILE");
  }

  ExitCode run(const Context& context) override {
    const PlanInputs inputs = resolve(flags_);
    sim::Predictor predictor(inputs.model, inputs.profile);
    std::vector<sim::Prediction> predictions;
    std::vector<TracedStep> traced;
    for (const Plan& plan : inputs.plans) {
      sim::PredictOptions options;
      Timeline timeline;
      if (!trace_.empty()) options.timeline = &timeline;
      predictions.push_back(predictor.predict(plan, options));
      if (!trace_.empty()) {
        traced.push_back({fmt::format("predicted, {}", name_of(plan.strategy)),
                          predictor.schedule(), std::move(timeline)});
      }
    }
    if (!trace_.empty()) write_step_trace(trace_, name(), inputs, traced);
    std::vector<sim::Explanation> explanations;
    if (explain_) {
      for (const Plan& plan : inputs.plans) explanations.push_back(sim::explain(predictor, plan));
    }
    if (json_) {
      print_json(inputs, predictions, explanations);
    } else {
      print_text(inputs, predictions, explanations, context.out);
    }
    return ExitCode::kDone;
  }

 private:
  void print_json(const PlanInputs& inputs, const std::vector<sim::Prediction>& predictions,
                  const std::vector<sim::Explanation>& explanations) const {
    const bool one = predictions.size() == 1;
    nlohmann::ordered_json document =
        one ? prediction_json(inputs, predictions.front()) : comparison_json(inputs, predictions);
    for (std::size_t i = 0; i < explanations.size(); ++i) {
      nlohmann::ordered_json& of = one ? document : document["predictions"][i];
      of["explanation"] = explanation_json(explanations[i]);
    }
    fmt::print("{}\n", json_text(document));
  }

  static void print_text(const PlanInputs& inputs, const std::vector<sim::Prediction>& predictions,
                         const std::vector<sim::Explanation>& explanations, const Terminal& out) {
    fmt::print("{}", predictions.size() == 1 ? prediction_text(inputs, predictions.front(), out)
                                             : comparison_text(inputs, predictions, out));
    for (std::size_t i = 0; i < explanations.size(); ++i) {
      if (explanations.size() > 1) {
        fmt::print("{}", heading(out, name_of(inputs.plans[i].strategy)));
      }
      fmt::print("{}", explanation_text(explanations[i], out));
    }
  }

  PlanFlags flags_;
  std::string trace_;
  bool json_ = false;
  bool explain_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_predict_verb() {
  return std::make_unique<PredictVerb>();
}

}  // namespace shardwright::cli
