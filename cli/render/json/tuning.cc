// SPDX-License-Identifier: Apache-2.0
#include "cli/render/tuning.h"

#include <nlohmann/json.hpp>

#include "cli/render/json/json_text.h"
#include "cli/render/prediction.h"
#include "cli/render/words/plan.h"
#include "cli/render/words/runs_here.h"
#include "sim/core/plan_json.h"
#include "tuner/search/space.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string_view name_of(tuner::Freedom freedom) {
  switch (freedom) {
    case tuner::Freedom::kFixed:
      return "fixed";
    case tuner::Freedom::kNotAllowed:
    case tuner::Freedom::kSetting:
      return "not allowed";
    case tuner::Freedom::kOutside:
      return "outside";
    case tuner::Freedom::kSearched:
      break;
  }
  return "searched";
}

Json plan_and_prediction(const sim::Job& inputs, const sim::Prediction& prediction) {
  return {{"plan", plan_to_json(prediction.plan)},
          {"prediction", prediction_json(inputs, prediction)}};
}

Json stress_json(const tuner::Tuning& tuning, std::size_t plan, double behind) {
  Json cases = Json::array();
  if (!tuning.robustness) return cases;
  for (std::size_t c = 0; c < tuning.robustness->cases.size(); ++c) {
    const tuner::Stress& stress = tuning.robustness->stress[plan][c];
    cases.push_back({{"scenario", tuning.robustness->cases[c].scenario},
                     {"fits", stress.fits},
                     {"excess_bytes", stress.excess_bytes},
                     {"behind_the_best", stress.behind},
                     {"flips", tuning.robustness->flips(plan, c, behind)}});
  }
  return cases;
}

Json top_json(const sim::Job& inputs, const tuner::Tuning& tuning) {
  Json all = Json::array();
  for (std::size_t i = 0; i < tuning.top.size(); ++i) {
    const double cost = tuning.top[i].score / tuning.top.front().score - 1;
    Json one = plan_and_prediction(inputs, tuning.top[i].prediction);
    one["cost"] = cost;
    one["if_off"] = stress_json(tuning, i, cost);
    all.push_back(std::move(one));
  }
  return all;
}

Json pareto_json(const sim::Job& inputs, const tuner::Tuning& tuning) {
  Json all = Json::array();
  for (const tuner::Found& found : tuning.pareto) {
    const sim::MemoryPrediction& memory = found.prediction.memory;
    Json one = plan_and_prediction(inputs, found.prediction);
    one["headroom_bytes"] = memory.usable_bytes - memory.total_bytes;
    one["arithmetic_changes"] = tuner::arithmetic_changes(found.plan());
    all.push_back(std::move(one));
  }
  return all;
}

Json knobs_json(const tuner::Tuning& tuning) {
  Json all = Json::array();
  for (const tuner::KnobStep& step : tuning.steps) {
    all.push_back({{"knob", step.knob},
                   {"from", step.from},
                   {"to", step.to},
                   {"freedom", name_of(step.freedom)},
                   {"plan", plan_to_json(step.judgement.prediction.plan)},
                   {"fits", step.judgement.fits},
                   {"excess_bytes", step.judgement.excess_bytes},
                   {"cost", step.cost}});
  }
  return all;
}

Json strategies_json(const sim::Job& inputs, const tuner::Tuning& tuning) {
  Json all = Json::array();
  for (const tuner::OtherStrategy& other : tuning.others) {
    Json one{{"strategy", shardwright::name_of(other.strategy)}, {"fits", other.best.has_value()}};
    one["cost"] = other.best ? Json(other.cost) : Json(nullptr);
    one["excess_bytes"] = other.best ? Json(nullptr) : Json(other.closest->excess_bytes);
    one.update(plan_and_prediction(
        inputs, other.best ? other.best->prediction : other.closest->prediction));
    all.push_back(std::move(one));
  }
  return all;
}

Json robustness_json(const sim::Job& inputs, const tuner::Tuning& tuning) {
  Json all = Json::array();
  if (!tuning.robustness) return all;
  for (const tuner::Robustness::Case& in_case : tuning.robustness->cases) {
    all.push_back({{"scenario", in_case.scenario},
                   {"best", in_case.best ? plan_and_prediction(inputs, in_case.best->prediction)
                                         : Json(nullptr)}});
  }
  return all;
}

/// Why plans are not among the answers.
Json rejected_json(const tuner::Tuning& tuning) {
  const tuner::Counts& counts = tuning.counts;
  const std::int64_t rest = counts.considered - counts.no_memory - counts.simulated;
  if (tuning.model_parallel) {
    return {{"does not fit by the stages' memory", counts.no_memory},
            {"cannot be better by the lower bound", rest}};
  }
  return {{"does not fit by the closed form", counts.no_memory},
          {"does not fit by the full prediction", counts.no_reserve},
          {"cannot be better by the closed form", rest}};
}

Json other_json(const sim::Job& inputs, const tuner::OtherFramework& other) {
  Json json{{"stack", other.stack}, {"fits", other.best.has_value()}};
  json["cost"] = other.best ? Json(other.cost) : Json(nullptr);
  if (other.best) json["within_uncertainty"] = other.within_uncertainty;
  if (!other.refusal.empty()) json["refusal"] = other.refusal;
  if (other.best) json.update(plan_and_prediction(inputs, other.best->prediction));
  if (other.closest) json["excess_bytes"] = other.closest->excess_bytes;
  return json;
}

sim::Job job_of_native(sim::Job inputs, const tuner::NativePlan& native) {
  inputs.profile = native.profile;
  return inputs;
}

Json ways_json(const sim::Job& inputs, const tuner::Tuning& tuning) {
  Json all = Json::array();
  if (!tuning.advice) return all;
  for (const tuner::Way& way : tuning.advice->ways) {
    Json one{
        {"change", way.what}, {"flags", way.flags}, {"gpu_seconds_per_token", way.gpu_s_per_token}};
    one.update(plan_and_prediction(inputs, way.plan.prediction));
    all.push_back(std::move(one));
  }
  return all;
}

/// What each framework can be told at best; of those that have a plan at all.
Json frameworks_json(const TuningQuestion& question, const tuner::Tuning& tuning) {
  Json all = Json::array();
  for (const FrameworkLine& line : question.frameworks) {
    Json one{{"framework", line.name}};
    if (line.best) {
      const sim::Prediction& p = line.best->prediction;
      one["plan"] = plan_to_json(p.plan);
      one["plan_words"] = plan_words(p.plan);
      one["set"] = line.overrides;
      one["iteration_time_s"] = p.time.iteration_s;
      one["tokens_per_s"] = p.time.tokens_per_s;
      one["total_bytes"] = p.memory.total_bytes;
      one["cost"] = line.best->score / tuning.top.front().score - 1;
    } else {
      one["plan"] = nullptr;
      one["refusal"] = line.refusal.empty() ? "nothing that it can be told fits" : line.refusal;
    }
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace

Json tuning_json(const TuningQuestion& question, const tuner::Tuning& tuning) {
  const sim::Job& inputs = question.job;
  const tuner::Counts& counts = tuning.counts;
  Json document{{"schema", "shardwright.tuning/1.0"},
                {"objective", tuner::name_of(question.criteria.objective)},
                {"headroom", question.criteria.headroom},
                {"robust", question.robust},
                {"usual_length", or_null(question.usual_length)},
                {"stopped", tuning.stopped}};
  const Json top = top_json(inputs, tuning);
  document["best"] = top.empty() ? Json(nullptr) : top.front();
  document["top"] = top;
  document["pareto"] = pareto_json(inputs, tuning);
  document["considered"] = counts.considered;
  document["pruned"] = counts.pruned();
  document["simulated"] = counts.simulated;
  document["predicted_in_full"] = counts.predicted;
  if (tuning.usual_global_batch > 0) document["assumed_global_batch"] = tuning.usual_global_batch;
  document["seconds"] = tuning.search_s;
  document["seconds_with_reasons"] = tuning.total_s;
  document["rejected"] = rejected_json(tuning);
  const std::vector<std::string> why = tuning_sentences(question, tuning);
  document["lead"] = top.empty() ? why.front() : lead_sentence(question, tuning);
  document["why"] = why;
  document["knobs"] = knobs_json(tuning);
  document["strategies"] = strategies_json(inputs, tuning);
  if (tuning.other) document["other_software"] = other_json(inputs, *tuning.other);
  if (tuning.native) {
    const Plan& plan = tuning.native->best.plan();
    Json native = runs_here_json(runs_here(inputs, plan));
    native["cost"] = tuning.native->cost;
    native.update(
        plan_and_prediction(job_of_native(inputs, *tuning.native), tuning.native->best.prediction));
    document["runs_here"] = std::move(native);
  }
  if (!question.frameworks.empty()) document["frameworks"] = frameworks_json(question, tuning);
  document["if_off"] = robustness_json(inputs, tuning);
  if (question.given) {
    Json given = plan_and_prediction(inputs, question.given->prediction);
    given["fits"] = question.given->fits;
    if (!tuning.top.empty()) given["cost"] = question.given->score / tuning.top.front().score - 1;
    document["given"] = std::move(given);
  }
  const Json ways = ways_json(inputs, tuning);
  document["nearest_feasible"] = ways.empty() ? Json(nullptr) : ways.front();
  document["ways"] = ways;
  if (tuning.advice && tuning.advice->closest) {
    document["closest"] = plan_and_prediction(inputs, tuning.advice->closest->prediction);
    document["closest"]["excess_bytes"] = tuning.advice->closest->excess_bytes;
    document["closest"]["empties_the_cache_in_every_step"] = tuning.advice->closest->thrashes;
  }
  return document;
}

}  // namespace shardwright::cli
