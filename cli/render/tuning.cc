// SPDX-License-Identifier: Apache-2.0
#include "cli/render/tuning.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/render/prediction.h"
#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"
#include "cli/render/words/plan.h"
#include "cli/render/words/why.h"
#include "sim/core/plan_json.h"
#include "tuner/search/space.h"

namespace shardwright::cli {

namespace {

constexpr std::size_t kParetoRows = 12;

std::string job_words(const TuningQuestion& question, const tuner::Tuning& tuning) {
  const sim::Job& inputs = question.job;
  std::string text =
      fmt::format("{} on {} x {} ({}), framework {}, sequences of {} tokens", inputs.model_name,
                  question.request.gpus, inputs.profile.cluster.gpu.id, inputs.cluster_name,
                  inputs.profile.stack.id, question.request.seq_len);
  if (question.request.global_batch)
    text += fmt::format(", {} of them a step", *question.request.global_batch);
  if (tuning.usual_global_batch > 0)
    text += fmt::format(", {} of them a step (assumed)", tuning.usual_global_batch);
  return text;
}

std::string goal_words(const TuningQuestion& question) {
  std::string text;
  switch (question.criteria.objective) {
    case tuner::Objective::kTime:
      text = "the least time a token";
      break;
    case tuner::Objective::kCost:
      text = "the most tokens a dollar";
      break;
    case tuner::Objective::kHeadroom:
      text = "the most memory left";
      break;
  }
  if (question.criteria.headroom > 0)
    text += fmt::format(", {} of the memory kept free", percent(question.criteria.headroom));
  if (question.robust) text += ", in the worst case that --robust names";
  return text;
}

std::string memory_left(const sim::MemoryPrediction& memory) {
  return bytes(memory.usable_bytes - memory.total_bytes);
}

/// In which adverse scenarios the plan would be the wrong choice.
std::string flip_words(const tuner::Tuning& tuning, std::size_t plan) {
  if (!tuning.robustness) return "";
  const double behind = tuning.top[plan].score / tuning.top.front().score - 1;
  std::vector<std::string> words;
  for (std::size_t c = 0; c < tuning.robustness->cases.size(); ++c) {
    if (!tuning.robustness->flips(plan, c, behind)) continue;
    const std::string& scenario = tuning.robustness->cases[c].scenario;
    words.push_back(scenario.substr(0, scenario.find(' ')));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string top_table(const TuningQuestion& question, const tuner::Tuning& tuning,
                      const Terminal& out) {
  Table table({right(""), left("plan"), right("step"), right("tokens/s"), right("memory"),
               right("against the best"), left("flips with")});
  for (std::size_t i = 0; i < tuning.top.size(); ++i) {
    const tuner::Found& found = tuning.top[i];
    const sim::Prediction& p = found.prediction;
    const double cost = found.score / tuning.top.front().score - 1;
    table.add_row({i + 1,
                   plan_words(found.plan()),
                   duration(p.time.iteration_s),
                   thousands(p.time.tokens_per_s),
                   bytes(p.memory.total_bytes),
                   i == 0 ? "" : cost_words(question.criteria.objective, cost),
                   {flip_words(tuning, i), Style::kYellow}});
  }
  return table.render(out);
}

/// Both ends of the front and points between them.
std::vector<const tuner::Found*> sample(const std::vector<tuner::Found>& front) {
  std::vector<const tuner::Found*> points;
  const std::size_t rows = std::min(front.size(), kParetoRows);
  for (std::size_t i = 0; i < rows; ++i)
    points.push_back(&front[rows == 1 ? 0 : i * (front.size() - 1) / (rows - 1)]);
  return points;
}

std::string arithmetic_words(const Plan& plan) {
  std::vector<const char*> words;
  if (plan.reduce_dtype == DType::kBf16) words.push_back("bf16 reduction");
  if (plan.master_dtype == DType::kBf16) words.push_back("bf16 master weights");
  if (plan.moment_dtype == DType::kBf16) words.push_back("bf16 moments");
  return words.empty() ? "none" : fmt::format("{}", fmt::join(words, ", "));
}

std::string pareto_table(const tuner::Tuning& tuning, const Terminal& out) {
  const bool changes = std::any_of(tuning.pareto.begin(), tuning.pareto.end(), [](const auto& f) {
    return tuner::arithmetic_changes(f.plan()) > 0;
  });
  std::vector<Column> columns{right("tokens/s"), right("memory left"), left("plan")};
  if (changes) columns.push_back(left("changed arithmetic"));
  Table table(std::move(columns));
  for (const tuner::Found* found : sample(tuning.pareto)) {
    const sim::Prediction& p = found->prediction;
    std::vector<Cell> cells{thousands(p.time.tokens_per_s), memory_left(p.memory),
                            plan_words(found->plan())};
    if (changes) cells.push_back(arithmetic_words(found->plan()));
    table.add_row(std::move(cells));
  }
  std::string text = table.render(out);
  if (tuning.pareto.size() > kParetoRows)
    text +=
        fmt::format("{} of {} points; --json has them all.\n", kParetoRows, tuning.pareto.size());
  return text;
}

std::string steps_table(const TuningQuestion& question, const tuner::Tuning& tuning,
                        const Terminal& out) {
  Table table({left("knob"), left("from"), left("to"), right("memory"), left("the step would be")});
  for (const tuner::KnobStep& step : tuning.steps) {
    std::string knob = step.knob;
    if (step.freedom == tuner::Freedom::kFixed) knob += " (held)";
    table.add_row({knob, step.from, step.to, bytes(step.judgement.prediction.memory.total_bytes),
                   step_words(step, question.criteria.objective)});
  }
  return table.render(out);
}

std::string strategies_table(const TuningQuestion& question, const tuner::Tuning& tuning,
                             const Terminal& out) {
  Table table({left("its best plan"), right("against the best"), right("memory"),
               left("what holds it back")});
  for (const tuner::OtherStrategy& other : tuning.others) {
    const sim::Prediction& p = other.best ? other.best->prediction : other.closest->prediction;
    table.add_row({plan_words(p.plan),
                   other.best ? Cell(cost_words(question.criteria.objective, other.cost))
                              : Cell("does not fit", Style::kRed),
                   bytes(p.memory.total_bytes),
                   held_back_words(other, tuning.top.front().prediction)});
  }
  return table.render(out);
}

std::string frameworks_table(const TuningQuestion& question, const tuner::Tuning& tuning,
                             const Terminal& out) {
  Table table({left("--for"), left("its best plan"), right("tokens/s"), right("memory"),
               right("against the best")});
  for (const FrameworkLine& line : question.frameworks) {
    if (!line.best) {
      if (line.refusal.empty())
        table.add_row({line.name, "nothing that it can be told fits", "", "", ""});
      continue;
    }
    const sim::Prediction& p = line.best->prediction;
    const double cost = line.best->score / tuning.top.front().score - 1;
    table.add_row({line.name + (line.name == "native" ? " (no GPU yet)" : ""), plan_words(p.plan),
                   thousands(p.time.tokens_per_s), bytes(p.memory.total_bytes),
                   cost_words(question.criteria.objective, cost)});
  }
  return table.render(out);
}

std::string alike_words(const TuningQuestion& question) {
  if (!question.request.strategies.empty() || question.request.gpus == 1) return "";
  const Stack& stack = question.job.profile.stack;
  std::vector<std::string> words;
  for (const Strategy strategy : all_strategies()) {
    const Strategy executed = tuner::executed_as(strategy, stack);
    if (executed != strategy)
      words.push_back(fmt::format("{} as {}", name_of(strategy), name_of(executed)));
  }
  if (words.empty()) return "";
  return fmt::format("The framework {} executes {}.", stack.id, fmt::join(words, ", "));
}

std::string robustness_text(const tuner::Tuning& tuning, const TuningQuestion& question,
                            const Terminal& out) {
  std::string text;
  for (const std::string& sentence : tuning_sentences(question, tuning)) {
    if (sentence.starts_with("With ")) text += paragraph(sentence, out);
  }
  return text;
}

std::string count_words(const tuner::Tuning& tuning) {
  const tuner::Counts& counts = tuning.counts;
  const auto count = [](std::int64_t n) { return thousands(n); };
  if (tuning.model_parallel) {
    return fmt::format(
        "{} plans in {}: {} do not fit, {} cannot be better by the lower bound, {} were predicted "
        "in full. With the reasons: {}.",
        count(counts.considered), duration(tuning.search_s), count(counts.no_memory),
        count(counts.considered - counts.no_memory - counts.simulated), count(counts.simulated),
        duration(tuning.total_s));
  }
  return fmt::format(
      "{} plans in {}: {} do not fit and {} cannot be better by the closed form, {} were "
      "simulated, {} predicted in full, of which {} do not fit. With the reasons: {}.",
      count(counts.considered), duration(tuning.search_s), count(counts.no_memory),
      count(counts.considered - counts.no_memory - counts.simulated), count(counts.simulated),
      count(counts.predicted), count(counts.no_reserve), duration(tuning.total_s));
}

std::string advice_text(const TuningQuestion& question, const tuner::Tuning& tuning,
                        const Terminal& out) {
  std::vector<std::string> sentences = tuning_sentences(question, tuning);
  std::string text = paint(out, Style::kRed, paragraph(sentences.front(), out));
  text += paragraph(job_words(question, tuning), out);
  if (question.usual_length) text += *question.usual_length + "\n";
  for (std::size_t i = 1; i < sentences.size(); ++i) text += paragraph(sentences[i], out);
  const std::vector<tuner::Way>& ways = tuning.advice->ways;
  if (ways.empty()) return text;
  text += heading(out, "Ways to make it fit");
  Table table({left("change"), left("flags"), left("then the best plan is"), right("step"),
               right("GPU h a 10^9"), right("memory")});
  for (const tuner::Way& way : ways) {
    table.add_row({way.what, way.flags, plan_words(way.plan.plan()),
                   duration(way.plan.prediction.time.iteration_s),
                   thousands(way.gpu_s_per_token * 1e9 / 3600),
                   bytes(way.plan.prediction.memory.total_bytes)});
  }
  return text + table.render(out);
}

std::string given_words(const TuningQuestion& question, const tuner::Tuning& tuning) {
  const tuner::Judgement& given = *question.given;
  const std::string plan = plan_words(given.prediction.plan);
  if (!given.fits)
    return fmt::format("The plan given ({}) {}.", plan,
                       excess_words(given.excess_bytes, given.thrashes));
  const double cost = given.score / tuning.top.front().score - 1;
  return fmt::format("The plan given ({}): {} than the best.", plan,
                     cost_words(question.criteria.objective, cost));
}

}  // namespace

std::string tuning_text(const TuningQuestion& question, const tuner::Tuning& tuning,
                        const Terminal& out) {
  if (tuning.top.empty()) {
    return advice_text(question, tuning, out) + "\n" + paragraph(count_words(tuning), out);
  }
  std::string text;
  const auto add_apart = [&](const std::string& sentence) {
    if (!sentence.empty()) text += "\n" + paragraph(sentence, out);
  };
  if (tuning.stopped) {
    text += paint(out, Style::kYellow, "Interrupted: this is the best so far, not the optimum.");
    text += "\n";
  }
  if (!tuning.stopped) text += paragraph(lead_sentence(question, tuning), out);
  text += paragraph(job_words(question, tuning), out);
  if (question.usual_length) text += *question.usual_length + "\n";
  text += paragraph("Searched for " + goal_words(question) + ".", out);
  text += heading(out, "The best plan");
  text += prediction_text(question.job, tuning.top.front().prediction, out);
  add_apart(spare_sentence(tuning, question.criteria.objective));
  if (question.given) add_apart(given_words(question, tuning));
  add_apart(packing_sentence(question, tuning));
  if (!question.frameworks.empty()) {
    text += heading(out, "In your framework: the best that each can be told");
    text += frameworks_table(question, tuning, out);
  }
  if (tuning.top.size() > 1) {
    text += heading(out, fmt::format("The {} best plans of different kinds", tuning.top.size()));
    text += top_table(question, tuning, out);
  }
  if (!tuning.pareto.empty()) {
    text += heading(out, "Nothing is both faster and smaller than these");
    text += pareto_table(tuning, out);
  }
  if (tuning.model_parallel) {
    text += heading(out, "Why: a size halved or doubled, the batch kept");
    for (auto&& sentences :
         {model_parallel_sentences(question, tuning), uncertainty_sentences(tuning)}) {
      for (const std::string& sentence : sentences) text += paragraph(sentence, out);
    }
  } else if (!tuning.steps.empty()) {
    text +=
        heading(out, "Why: one knob moved, all else equal") + steps_table(question, tuning, out);
  }
  add_apart(other_sentence(question, tuning));
  add_apart(native_sentence(question, tuning));
  if (!tuning.others.empty()) {
    text += heading(out, "Why not another strategy") + strategies_table(question, tuning, out);
    text += alike_words(question).empty() ? "" : paragraph(alike_words(question), out);
  }
  if (tuning.robustness) {
    text += heading(out, "If the prediction is off") + robustness_text(tuning, question, out);
  }
  return text + "\n" + paragraph(count_words(tuning), out);
}

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
  return json_list(tuning.pareto, [&](const tuner::Found& found) {
    const sim::MemoryPrediction& memory = found.prediction.memory;
    Json one = plan_and_prediction(inputs, found.prediction);
    one["headroom_bytes"] = memory.usable_bytes - memory.total_bytes;
    one["arithmetic_changes"] = tuner::arithmetic_changes(found.plan());
    return one;
  });
}

Json knobs_json(const tuner::Tuning& tuning) {
  return json_list(tuning.steps, [&](const tuner::KnobStep& step) -> Json {
    return {{"knob", step.knob},
            {"from", step.from},
            {"to", step.to},
            {"freedom", name_of(step.freedom)},
            {"plan", plan_to_json(step.judgement.prediction.plan)},
            {"fits", step.judgement.fits},
            {"excess_bytes", step.judgement.excess_bytes},
            {"cost", step.cost}};
  });
}

Json strategies_json(const sim::Job& inputs, const tuner::Tuning& tuning) {
  return json_list(tuning.others, [&](const tuner::OtherStrategy& other) {
    Json one{{"strategy", shardwright::name_of(other.strategy)}, {"fits", other.best.has_value()}};
    one["cost"] = other.best ? Json(other.cost) : Json(nullptr);
    one["excess_bytes"] = other.best ? Json(nullptr) : Json(other.closest->excess_bytes);
    one.update(plan_and_prediction(
        inputs, other.best ? other.best->prediction : other.closest->prediction));
    return one;
  });
}

Json robustness_json(const sim::Job& inputs, const tuner::Tuning& tuning) {
  if (!tuning.robustness) return Json::array();
  return json_list(tuning.robustness->cases, [&](const tuner::Robustness::Case& in_case) -> Json {
    return {{"scenario", in_case.scenario},
            {"best",
             in_case.best ? plan_and_prediction(inputs, in_case.best->prediction) : Json(nullptr)}};
  });
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
  if (!tuning.advice) return Json::array();
  return json_list(tuning.advice->ways, [&](const tuner::Way& way) {
    Json one{
        {"change", way.what}, {"flags", way.flags}, {"gpu_seconds_per_token", way.gpu_s_per_token}};
    one.update(plan_and_prediction(inputs, way.plan.prediction));
    return one;
  });
}

/// What each framework can be told at best; of those that have a plan at all.
Json frameworks_json(const TuningQuestion& question, const tuner::Tuning& tuning) {
  return json_list(question.frameworks, [&](const FrameworkLine& line) {
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
    return one;
  });
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
