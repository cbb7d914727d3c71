// SPDX-License-Identifier: Apache-2.0
#include "sim/predict.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/flags/plan_flags.h"
#include "cli/flags/size_flags.h"
#include "cli/render/drawn_step.h"
#include "cli/render/explanation.h"
#include "cli/render/prediction.h"
#include "cli/render/text/json_text.h"
#include "cli/render/words/plan.h"
#include "cli/render/words/why.h"
#include "cli/verbs/verbs.h"
#include "sim/core/base/error.h"
#include "sim/explain/explain.h"
#include "tuner/search/request.h"

namespace shardwright::cli {
namespace {

class PredictVerb : public Verb {
 public:
  PredictVerb()
      : Verb("predict", "memory, time and a timeline for one plan, or several side by side") {}

  void declare_flags(Command& command) override {
    flags_.declare(command);
    command.add("--json", json_, "print one JSON document");
    command.add("--explain", explain_,
                "say what bounds each part of the step and what one change would buy");
    command.add_file("--trace", trace_, "write a Chrome trace of the step, for Perfetto").writes();
    command.add("--tokens", tokens_,
                "also say what a whole run on so many tokens takes in days and dollars", {1, 1e18});
    prices_.declare(command, "Options");
    energy_.declare(command);
    command.add("--require-fit", require_fit_,
                "end with code 4 when the plan, or every one of several, does not fit");
    command.add("--jitter", jitter_,
                "also simulate ranks whose kernels vary by this standard deviation, as 0.02, and "
                "wait for each other in collectives: 8, of a pipeline up to 16 a stage",
                {0, 0.5});
    command.add("--rank-jitter", rank_jitter_,
                "with --jitter: what of it all kernels of a rank have alike, as clocks that differ "
                "(default: half of the variance)",
                {0, 0.5});
  }

  ExitCode run(const Context& context) override {
    if ((prices_.any() || energy_.any()) && !tokens_) {
      throw Error(
          fmt::format("{} of a whole run, but --tokens is missing; add it.",
                      prices_.any() ? "--price and --prices are" : "--pue and --grid-kg are"),
          ExitCode::kUsage);
    }
    if (rank_jitter_ && *rank_jitter_ > jitter_.value_or(0)) {
      throw Error(fmt::format("--rank-jitter is {:g}, expected at most --jitter, {:g}.",
                              *rank_jitter_, jitter_.value_or(0)),
                  ExitCode::kUsage);
    }
    const sim::Job inputs = resolve(flags_);
    tell_notes(context.err, model_notes(inputs.model, inputs.plans.front().seq_len));
    sim::Predictor predictor(inputs.model, inputs.profile);
    std::vector<sim::Prediction> predictions;
    std::vector<sim::Jitter> jitters;
    for (const Plan& plan : inputs.plans) {
      predictions.push_back(predictor.predict(plan));
      predictions.back().routing = sim::routing_price(predictor, predictions.back());
      if (jitter_)
        jitters.push_back(sim::jitter_of(predictor, predictions.back(), *jitter_, rank_jitter_));
    }
    if (!trace_.empty()) write_trace_of(trace_, name(), inputs);
    std::vector<sim::Explanation> explanations;
    if (explain_) {
      for (const Plan& plan : inputs.plans) explanations.push_back(sim::explain(predictor, plan));
    }
    std::vector<WholeRunAnswer> runs;
    if (tokens_) {
      const Cluster& machine = inputs.profile.cluster;
      tuner::check_price_names(prices_.given, tuner::price_names(inputs.cluster_name, machine));
      const profiles::Price price =
          tuner::price_of_cluster(inputs.cluster_name, machine, prices_.given,
                                  profiles::PriceKind::kOnDemand, prices_.imported());
      for (const sim::Prediction& prediction : predictions)
        runs.push_back(whole_run(inputs, prediction, price));
    }
    if (json_) {
      print_json(inputs, predictions, explanations, jitters, runs);
    } else {
      print_text(inputs, predictions, explanations, context.out);
      for (const WholeRunAnswer& run : runs)
        fmt::print(results(), "{}", whole_run_text(run, context.out));
      print_jitter(inputs, jitters, context.out);
    }
    return require_fit_ && !any_fits(predictions) ? ExitCode::kInfeasible : ExitCode::kDone;
  }

 private:
  WholeRunAnswer whole_run(const sim::Job& inputs, const sim::Prediction& prediction,
                           const profiles::Price& price) const {
    const Plan& plan = prediction.plan;
    WholeRunAnswer answer;
    answer.conditions = tuner::usual_conditions(inputs.model, *tokens_, plan.seq_len);
    answer.price = price;
    answer.energy = energy_.energy(flags_.power_limit_watts);
    answer.gpu = inputs.profile.cluster.gpu.id;
    answer.tokens_per_step = tokens_per_step(plan);
    answer.cost =
        tuner::run_cost(inputs.model, prediction, inputs.profile.cluster.gpu.peak_bf16_flops,
                        answer.conditions, answer.price);
    return answer;
  }

  static bool any_fits(const std::vector<sim::Prediction>& predictions) {
    return std::any_of(predictions.begin(), predictions.end(), [](const sim::Prediction& one) {
      return one.memory.verdict != sim::MemoryVerdict::kDoesNotFit;
    });
  }

  void print_json(const sim::Job& inputs, const std::vector<sim::Prediction>& predictions,
                  const std::vector<sim::Explanation>& explanations,
                  const std::vector<sim::Jitter>& jitters,
                  const std::vector<WholeRunAnswer>& runs) const {
    const bool one = predictions.size() == 1;
    nlohmann::ordered_json document =
        one ? prediction_json(inputs, predictions.front()) : comparison_json(inputs, predictions);
    for (std::size_t i = 0; i < predictions.size(); ++i) {
      nlohmann::ordered_json& of = one ? document : document["predictions"][i];
      if (explain_) of["explanation"] = explanation_json(inputs.model, explanations[i]);
      if (jitter_) of["jitter"] = jitter_json(jitters[i]);
      if (tokens_) of["whole_run"] = whole_run_json(runs[i]);
    }
    fmt::print(results(), "{}\n", json_text(document));
  }

  void print_text(const sim::Job& inputs, const std::vector<sim::Prediction>& predictions,
                  const std::vector<sim::Explanation>& explanations, const Terminal& out) const {
    fmt::print(results(), "{}",
               predictions.size() == 1 ? prediction_text(inputs, predictions.front(), out)
                                       : comparison_text(inputs, predictions, out));
    for (std::size_t i = 0; i < explanations.size(); ++i) {
      if (predictions.size() > 1) {
        fmt::print(results(), "{}", heading(out, name_of(inputs.plans[i].strategy)));
      }
      fmt::print(results(), "{}{}", losses_text(predictions[i], out),
                 explanation_text(explanations[i], out));
      fmt::print(results(), "{}{}", heading(out, "Memory by the rule of thumb"),
                 sentences_text(rule_of_thumb_sentences(inputs.model, predictions[i]), out));
    }
  }

  static void print_jitter(const sim::Job& inputs, const std::vector<sim::Jitter>& jitters,
                           const Terminal& out) {
    if (jitters.empty()) return;
    fmt::print(results(), "{}", heading(out, "Ranks that vary"));
    for (std::size_t i = 0; i < jitters.size(); ++i) {
      std::string sentence = jitter_sentence(jitters[i]);
      if (jitters.size() > 1)
        sentence = fmt::format("{}: {}", name_of(inputs.plans[i].strategy), sentence);
      fmt::print(results(), "{}", paragraph(sentence, out));
    }
  }

  PlanFlags flags_;
  std::string trace_;
  std::optional<double> jitter_, rank_jitter_;
  PriceFlags prices_;
  EnergyFlags energy_;
  std::optional<double> tokens_;
  bool json_ = false;
  bool explain_ = false;
  bool require_fit_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_predict_verb() {
  return std::make_unique<PredictVerb>();
}

}  // namespace shardwright::cli
