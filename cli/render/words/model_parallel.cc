// SPDX-License-Identifier: Apache-2.0
#include "cli/render/words/model_parallel.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "cli/render/text/quantity.h"
#include "cli/render/words/plan.h"
#include "cli/render/words/runs_here.h"
#include "cli/render/words/why.h"

namespace shardwright::cli {

namespace {

struct Dimension {
  std::string_view knob;
  std::string_view model_parallel, whole;  // what it does, and that it does not
  CommGroup group;
  bool communicates;
};
constexpr std::array<Dimension, 7> kDimensions = {{
    {"tp", "cuts every matrix", "Matrices stay whole", CommGroup::kTensor, true},
    {"pp", "cuts the layers into stages", "There is one stage", CommGroup::kPipeline, true},
    {"virtual-stages", "lets stages take turns in smaller chunks", "A stage is one run of layers",
     CommGroup::kPipeline, false},
    {"cp", "cuts every sequence", "Sequences stay whole", CommGroup::kContext, true},
    {"ep", "spreads the experts", "Every rank holds all experts", CommGroup::kExpert, true},
    {"etp", "cuts the experts' matrices", "Matrices of experts stay whole", CommGroup::kTensor,
     false},
    {"micro-batch", "sequences run at a time", "One sequence runs at a time", CommGroup::kTensor,
     false},
}};

std::int64_t size_of(const Plan& plan, std::string_view knob) {
  const Parallelism& p = plan.parallel;
  if (knob == "tp") return p.tp;
  if (knob == "pp") return p.pp;
  if (knob == "virtual-stages") return p.virtual_stages;
  if (knob == "cp") return p.cp;
  if (knob == "ep") return p.ep;
  if (knob == "etp") return p.etp;
  return plan.micro_batch;
}

/// "the step waits 554 ms for its messages"; of pipelines the bubble as well.
std::string price_words(const sim::Prediction& best, const Dimension& dimension) {
  std::vector<std::string> words;
  const double exposed = best.exposed_s[static_cast<std::size_t>(dimension.group)];
  if (dimension.communicates && exposed > 0)
    words.push_back(fmt::format("the step waits {} for its messages", quantity(exposed, "s")));
  if (dimension.knob == "pp" && best.pipeline.bubble > 0)
    words.push_back(
        fmt::format("its bubble is {} of the stages' time", percent(best.pipeline.bubble)));
  return fmt::format("{}", fmt::join(words, " and "));
}

/// "with 4 3.1 % slower (20 layers full)".
std::string neighbour_words(const tuner::KnobStep& step, const Plan& choice,
                            tuner::Objective objective) {
  const Plan& plan = step.judgement.prediction.plan;
  const bool recomputes = plan.recompute != choice.recompute || plan.pieces != choice.pieces ||
                          plan.ckpt_layers != choice.ckpt_layers;
  std::string words = fmt::format("with {} {}", step.to, step_words(step, objective));
  if (step.judgement.fits && recomputes) words += fmt::format(" ({})", checkpoint_words(plan));
  return words;
}

std::string dimension_sentence(const Dimension& dimension, const tuner::Tuning& tuning,
                               tuner::Objective objective) {
  const sim::Prediction& best = tuning.top.front().prediction;
  std::vector<std::string> neighbours;
  for (const tuner::KnobStep& step : tuning.steps) {
    if (step.knob == dimension.knob)
      neighbours.push_back(neighbour_words(step, best.plan, objective));
  }
  const std::int64_t size = size_of(best.plan, dimension.knob);
  if (neighbours.empty() && size == 1) return "";
  std::string text = size == 1
                         ? fmt::format("{} ({} 1)", dimension.whole, dimension.knob)
                         : fmt::format("{} {} {}", dimension.knob, size, dimension.model_parallel);
  const std::string price = size == 1 ? "" : price_words(best, dimension);
  if (!price.empty()) text += ", and " + price;
  if (!neighbours.empty()) text += fmt::format(": {}", fmt::join(neighbours, "; "));
  return text + ".";
}

}  // namespace

std::vector<std::string> model_parallel_sentences(const TuningQuestion& question,
                                                  const tuner::Tuning& tuning) {
  const tuner::Objective objective = question.criteria.objective;
  std::vector<std::string> sentences;
  for (const Dimension& dimension : kDimensions) {
    std::string sentence = dimension_sentence(dimension, tuning, objective);
    if (!sentence.empty()) sentences.push_back(std::move(sentence));
  }
  for (const tuner::KnobStep& step : tuning.steps) {
    const auto* known =
        std::find_if(kDimensions.begin(), kDimensions.end(),
                     [&](const Dimension& dimension) { return dimension.knob == step.knob; });
    if (known != kDimensions.end()) continue;
    sentences.push_back(fmt::format("Moving {} from {} to {}: {}.", step.knob, step.from, step.to,
                                    step_words(step, objective)));
  }
  return sentences;
}

std::string other_sentence(const TuningQuestion& question, const tuner::Tuning& tuning) {
  if (!tuning.other) return "";
  const tuner::OtherFramework& other = *tuning.other;
  const tuner::Objective objective = question.criteria.objective;
  if (!tuning.model_parallel)
    return fmt::format("No model-parallel plan of {} is predicted to be better.", other.stack);
  const std::string plainly = "Why not data parallelism alone: ";
  if (!other.refusal.empty()) return plainly + other.refusal + ".";
  if (other.best) {
    return plainly +
           fmt::format("its best plan on {} ({}) is {}{}.", other.stack,
                       plan_words(other.best->plan()), cost_words(objective, other.cost),
                       other.within_uncertainty
                           ? fmt::format(", less than both predictions are uncertain: whoever "
                                         "runs {} already may stay there (--stack {})",
                                         other.stack, other.stack)
                           : "");
  }
  if (!other.closest) return plainly + "nothing fits.";
  return plainly + fmt::format("nothing fits; the closest plan on {} ({}) {}.", other.stack,
                               plan_words(other.closest->prediction.plan),
                               excess_words(other.closest->excess_bytes, other.closest->thrashes));
}

std::string native_sentence(const TuningQuestion& question, const tuner::Tuning& tuning) {
  if (!tuning.native) return "";
  const tuner::NativePlan& native = *tuning.native;
  return fmt::format(
      "This program runs {} itself{}, predicted {} than the best, inside its interval: {}",
      plan_words(native.best.plan()),
      question.job.profile.cluster.gpu.is_processor() ? "" : " (not yet run on a GPU)",
      cost_words(question.criteria.objective, native.cost),
      runs_here(question.job, native.best.plan()).command);
}

std::vector<std::string> uncertainty_sentences(const tuner::Tuning& tuning) {
  std::vector<std::string> sentences;
  const sim::Prediction& best = tuning.top.front().prediction;
  sentences.push_back(fmt::format(
      "It needs the framework {}; published runs leave its step within {} to {} ({} interval).",
      best.plan.stack, quantity(best.time.interval_s[0], "s"),
      quantity(best.time.interval_s[1], "s"), percent(best.time.interval_level, 0)));
  if (tuning.usual_global_batch > 0) {
    sentences.push_back(fmt::format(
        "Nobody said how many sequences a step takes: {} were assumed, below the critical batch "
        "of a training on 20 tokens a parameter; --global-batch says another number.",
        thousands(static_cast<double>(tuning.usual_global_batch))));
  }
  return sentences;
}

std::string model_parallel_words(const Plan& plan) {
  const Parallelism& p = plan.parallel;
  std::vector<std::string> words;
  const auto add = [&](std::string_view name, std::int64_t size) {
    if (size > 1) words.push_back(fmt::format("{} {}", name, size));
  };
  add("tp", p.tp);
  add("pp", p.pp);
  if (p.virtual_stages > 1) words.back() += fmt::format(" x {}", p.virtual_stages);
  if (p.pp_schedule) words.emplace_back(name_of(*p.pp_schedule));
  add("cp", p.cp);
  add("ep", p.ep);
  add("etp", p.etp);
  if (p.ep > 1 && p.dispatcher) words.emplace_back(name_of(*p.dispatcher));
  if (p.ep > 1 && p.ep_overlap.value_or(false)) words.emplace_back("ep overlap");
  if (p.sequence_parallel() && p.tp_overlap && *p.tp_overlap != TensorOverlap::kNone)
    words.push_back(fmt::format("{} overlap", name_of(*p.tp_overlap)));
  if (plan.numerics.precision != Precision::kBf16)
    words.emplace_back(name_of(plan.numerics.precision));
  if (plan.numerics.optimizer != Optimizer::kAdamw)
    words.emplace_back(name_of(plan.numerics.optimizer));
  const Numerics& numerics = plan.numerics;
  if (numerics.lora > 0) {
    words.push_back(
        numerics.quantize == Quantize::kNone
            ? fmt::format("lora {}", numerics.lora)
            : fmt::format("lora {} over {}", numerics.lora, name_of(numerics.quantize)));
  }
  if (words.empty()) return "";
  if (p.replica() < plan.gpus) add("dp", plan.gpus / p.replica());
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string short_layout(const Plan& plan) {
  const Parallelism& p = plan.parallel;
  std::string text;
  const auto add = [&](std::string_view name, std::int64_t size) {
    if (size > 1) text += fmt::format("{}{}{}", text.empty() ? "" : " ", name, size);
  };
  add("tp", p.tp);
  add("pp", p.pp);
  if (p.virtual_stages > 1) text += fmt::format("x{}", p.virtual_stages);
  add("cp", p.cp);
  add("ep", p.ep);
  add("etp", p.etp);
  return text;
}

}  // namespace shardwright::cli
