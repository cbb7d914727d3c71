// SPDX-License-Identifier: Apache-2.0
#include "cli/render/tuning.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <utility>

#include "cli/render/text/quantity.h"
#include "cli/render/words/plan.h"
#include "cli/render/words/why.h"
#include "tuner/advice/advice.h"

namespace shardwright::cli {
namespace {

std::string best_sentence(const tuner::Tuning& tuning) {
  const sim::Prediction& best = tuning.top.front().prediction;
  return fmt::format("The best{} of {} plans is {}: {} a step, {} tokens/s, {} of {} of memory.",
                     tuning.stopped ? " so far" : "", thousands(tuning.counts.considered),
                     plan_words(best.plan), quantity(best.time.iteration_s, "s"),
                     thousands(best.time.tokens_per_s), bytes(best.memory.total_bytes),
                     bytes(best.memory.usable_bytes));
}

std::string case_sentence(const tuner::Tuning& tuning, std::size_t c, tuner::Objective objective) {
  const tuner::Robustness& robustness = *tuning.robustness;
  const tuner::Robustness::Case& in_case = robustness.cases[c];
  const tuner::Stress& stress = robustness.stress.front()[c];
  std::string text = fmt::format("With {} the prediction, the choice ", in_case.scenario);
  const auto then = [&] {
    return in_case.best ? fmt::format("{}", plan_words(in_case.best->plan()))
                        : std::string("nothing that fits");
  };
  if (!stress.fits) {
    text += fmt::format("flips: it {}, and the best is then {}.",
                        excess_words(stress.excess_bytes, stress.thrashes), then());
  } else if (robustness.flips(0, c, 0)) {
    text += fmt::format("flips: it fits, but is {} than the best then, {}.",
                        cost_words(objective, stress.behind), then());
  } else if (stress.behind < 5e-5) {
    text += "fits and stays the best.";
  } else {
    text += fmt::format("fits and stays within {} of the best then, {}.", percent(stress.behind, 2),
                        then());
  }
  return text;
}

std::string closest_sentence(const tuner::Advice& advice) {
  const tuner::Judgement& closest = *advice.closest;
  const sim::MemoryPrediction& memory = closest.prediction.memory;
  if (closest.thrashes)
    return fmt::format("The closest is {}, which {}.", plan_words(closest.prediction.plan),
                       excess_words(0, true));
  return fmt::format("The closest is {}, which needs {} of the {} of a GPU: {} more than it may.",
                     plan_words(closest.prediction.plan), bytes(memory.total_bytes),
                     bytes(memory.usable_bytes), bytes(closest.excess_bytes));
}

}  // namespace

std::string spare_sentence(const tuner::Tuning& tuning, tuner::Objective objective) {
  if (tuning.pareto.empty()) return "";
  const double gain = tuning.pareto.front().score / tuning.top.front().score - 1;
  if (gain > -0.005 || objective == tuner::Objective::kHeadroom) return "";
  return fmt::format(
      "Recomputing more than memory requires would be faster still, by the simulation: {}, {}. No "
      "published run shows such a gain, so only --recompute-for-speed takes it.",
      plan_words(tuning.pareto.front().plan()), cost_words(objective, gain));
}

std::string way_out_sentence(const TuningQuestion& question, const tuner::Tuning& tuning) {
  if (!tuning.advice || tuning.advice->ways.empty()) return "Nothing fits.";
  const tuner::Way& way = tuning.advice->ways.front();
  const sim::Prediction& p = way.plan.prediction;
  const std::string on =
      fmt::format("{} x {}", question.request.gpus, question.job.profile.cluster.gpu.id);
  const bool asks_for_all = !question.request.parallel.lora;
  const std::string start =
      tuner::trains_adapters(way) && asks_for_all
          ? fmt::format("Training every weight of {} does not fit on {}; {} does",
                        question.job.model_name, on, way.what)
          : fmt::format("Nothing fits on {} as it was asked for; with {} this does", on, way.what);
  return fmt::format("{}: {}, {} of {} of memory, {} tokens/s ({}).", start, plan_words(p.plan),
                     bytes(p.memory.total_bytes), bytes(p.memory.usable_bytes),
                     thousands(p.time.tokens_per_s), way.flags);
}

/// "torchtitan fsdp2, tp 4"; of scripts of one's own the strategy alone says the software.
std::string framework_plan_words(const FrameworkLine& line) {
  std::string words = plan_words(line.best->plan());
  if (line.name != "fsdp2") return fmt::format("{} {}", line.title, words);
  return words.insert(std::min(words.find(','), words.size()), " in a PyTorch script");
}

std::string lead_sentence(const TuningQuestion& question, const tuner::Tuning& tuning) {
  const sim::Prediction& p = tuning.top.front().prediction;
  std::string text = fmt::format("Take {} on {}: {} tokens/s, {} of {} of memory.",
                                 plan_words(p.plan), p.plan.stack, thousands(p.time.tokens_per_s),
                                 bytes(p.memory.total_bytes), bytes(p.memory.usable_bytes));
  if (question.fine_tunes) return text;  // it stays in its framework
  std::vector<std::string> others;
  for (const FrameworkLine& line : question.frameworks) {
    const bool asked_for = line.name == "torchtitan" || line.name == "fsdp2";
    if (!asked_for || !line.best || line.best->plan() == p.plan) continue;
    others.push_back(fmt::format(
        "with {}, {}", framework_plan_words(line),
        cost_words(question.criteria.objective, line.best->score / tuning.top.front().score - 1)));
  }
  if (others.empty()) return text;
  others.front().front() = 'W';
  return text + fmt::format(" {}.", fmt::join(others, "; "));
}

std::string packing_sentence(const TuningQuestion& question, const tuner::Tuning& tuning) {
  const bool leads_there = tuning.advice && !tuning.advice->ways.empty() &&
                           tuner::trains_adapters(tuning.advice->ways.front());
  if (!question.fine_tunes && !leads_there) return "";
  return fmt::format(
      "Tokens count padding: pack short examples into sequences of {} tokens (packing of TRL, "
      "sample_packing of axolotl), and these rates are those of real tokens.",
      question.request.seq_len);
}

std::string nothing_fits_sentence(const tuner::Tuning& tuning) {
  std::string text = fmt::format("none of {} plans fits", thousands(tuning.counts.considered));
  if (!tuning.advice || tuning.advice->ways.empty())
    return text + ", and no single change that was tried makes one fit.";
  const tuner::Way& way = tuning.advice->ways.front();
  return text + fmt::format("; the nearest plan that would is {} with {} ({}).",
                            plan_words(way.plan.plan()), way.what, way.flags);
}

std::vector<std::string> tuning_sentences(const TuningQuestion& question,
                                          const tuner::Tuning& tuning) {
  std::vector<std::string> sentences;
  const auto add_packing = [&] {
    if (std::string packing = packing_sentence(question, tuning); !packing.empty())
      sentences.push_back(std::move(packing));
  };
  if (tuning.top.empty()) {
    sentences.push_back(way_out_sentence(question, tuning));
    if (tuning.advice && tuning.advice->closest)
      sentences.push_back(closest_sentence(*tuning.advice));
    if (tuning.advice && tuning.advice->ways.empty())
      sentences.push_back("No change that was tried makes a plan fit.");
    add_packing();
    return sentences;
  }
  const tuner::Objective objective = question.criteria.objective;
  sentences.push_back(best_sentence(tuning));
  const std::string spare = spare_sentence(tuning, objective);
  if (!spare.empty()) sentences.push_back(spare);
  if (tuning.model_parallel) {
    for (auto&& words : {uncertainty_sentences(tuning), model_parallel_sentences(question, tuning)})
      sentences.insert(sentences.end(), words.begin(), words.end());
  }
  for (const tuner::KnobStep& step : tuning.steps) {
    if (tuning.model_parallel) break;
    sentences.push_back(fmt::format("Moving {} from {} to {}: {}.", step.knob, step.from, step.to,
                                    step_words(step, objective)));
  }
  for (const tuner::OtherStrategy& other : tuning.others) {
    const std::string held_back = held_back_words(other, tuning.top.front().prediction);
    sentences.push_back(
        other.best
            ? fmt::format("At its best ({}), {} is {}: {}.", plan_words(other.best->plan()),
                          name_of(other.strategy), cost_words(objective, other.cost), held_back)
            : fmt::format("No plan of {} fits, {}.", name_of(other.strategy), held_back));
  }
  if (std::string other = other_sentence(question, tuning); !other.empty())
    sentences.push_back(std::move(other));
  if (tuning.robustness) {
    for (std::size_t c = 0; c < tuning.robustness->cases.size(); ++c)
      sentences.push_back(case_sentence(tuning, c, objective));
  }
  add_packing();
  return sentences;
}

}  // namespace shardwright::cli
