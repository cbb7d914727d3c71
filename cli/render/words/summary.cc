// SPDX-License-Identifier: Apache-2.0
// The few sentences for whoever signs: what to take, for how long, for how much, the chance to miss
// the goal, and what flips the answer. Everything else is detail.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cmath>

#include "cli/render/sizing.h"
#include "cli/render/text/quantity.h"
#include "cli/render/words/plan.h"

namespace shardwright::cli {
namespace {

using tuner::Sized;

int level_percent(const Sized& option) {
  return static_cast<int>(std::lround(100 * option.cost.level));
}

/// Empty for whole nodes.
std::string part_of_node_sentence(const SizingReport& report, const Sized& option) {
  const Cluster& cluster = report.offer_of(option).profile.cluster;
  const std::string part = part_of_node_words(cluster, option.prediction.plan.gpus);
  if (part.empty()) return "";
  return fmt::format(" That is {}; a node that is let whole costs that of {} GPUs.", part,
                     cluster.gpus_per_node);
}

std::string take_sentence(const SizingReport& report, const Sized& option) {
  const Plan& plan = option.prediction.plan;
  return fmt::format("Take {} ({}) with {} on {}.", fleet_words(report, option),
                     report.offer_of(option).profile.cluster.gpu.id, plan_words(plan), plan.stack) +
         part_of_node_sentence(report, option) +
         (tuner::estimate_only(report.offer_of(option))
              ? " Nothing was measured on these GPUs: what follows are estimates."
              : "");
}

std::string time_sentence(const SizingReport& report, const Sized& option) {
  const tuner::RunCost& cost = option.cost;
  return fmt::format("{} tokens take {} ({} to {} at {} %).", tokens_words(report.job.run.tokens),
                     days_words(cost.days), days_words(cost.days_interval[0]),
                     days_words(cost.days_interval[1]), level_percent(option));
}

std::string cost_sentence(const SizingReport& report, const Sized& option) {
  const tuner::RunCost& cost = option.cost;
  if (!cost.usd) return "The price of this cluster is unknown; --price tells it.";
  return fmt::format("They cost {} ({} to {} at {} %) at {:.2f} USD per GPU hour.",
                     dollars(*cost.usd), dollars((*cost.usd_interval)[0]),
                     dollars((*cost.usd_interval)[1]), level_percent(option),
                     report.offer_of(option).usd_per_gpu_hour);
}

/// "about 18 %"; the ends of the scale are no certainties.
std::string chance_words(double probability) {
  if (probability < 0.01) return "less than 1 %";
  if (probability > 0.99) return "more than 99 %";
  return fmt::format("about {:.0f} %", 100 * probability);
}

std::string misses_words(const SizingReport& report, const Sized& option) {
  const tuner::Misses misses = tuner::misses_of(option, report.goal);
  std::vector<std::string> parts;
  if (misses.deadline) {
    parts.push_back(fmt::format("the deadline of {} in {}", days_words(*report.goal.deadline_days),
                                chance_words(*misses.deadline)));
  }
  if (misses.budget) {
    parts.push_back(fmt::format("the budget of {} in {}", dollars(*report.goal.budget_usd),
                                chance_words(*misses.budget)));
  }
  return fmt::format("{}", fmt::join(parts, " and "));
}

std::string size_in_brief(const SizingReport& report, const Sized& option) {
  return fmt::format("{}, {}{}", fleet_words(report, option), days_words(option.cost.days),
                     option.cost.usd ? ", " + dollars(*option.cost.usd) : "");
}

/// The chance to miss, and the smaller size that meets the goal in the middle only.
std::string chance_sentence(const SizingReport& report, const Sized& option) {
  const std::string misses = misses_words(report, option);
  if (misses.empty()) return "";
  std::string text = fmt::format("It misses {} of all cases", misses);
  const tuner::Choice& choice = report.choice;
  if (choice.safe && choice.smallest && choice.smallest != choice.recommended) {
    const Sized& smallest = report.option(*choice.smallest);
    text += fmt::format("; the smallest that meets the goal in the middle ({}) misses {}",
                        size_in_brief(report, smallest), misses_words(report, smallest));
    if (choice.smallest_safe && choice.smallest_safe != choice.recommended) {
      text += fmt::format(", the smallest that meets it with {:.0f} % is {}",
                          100 * (1 - tuner::kSafeMiss),
                          size_in_brief(report, report.option(*choice.smallest_safe)));
    }
  } else if (choice.safe && !report.goal.deadline_days &&
             choice.in_the_middle != choice.recommended) {
    const Sized& fastest = report.option(*choice.in_the_middle);
    text += fmt::format("; the fastest that meets it in the middle ({}) misses {}",
                        size_in_brief(report, fastest), misses_words(report, fastest));
  } else if (!choice.safe && !report.job.gpus) {
    text += fmt::format("; nothing meets the goal with {:.0f} %", 100 * (1 - tuner::kSafeMiss));
  }
  return text + ".";
}

}  // namespace

std::string tokens_words(double tokens) {
  for (const auto& [unit, letter] : {std::pair{1e12, 'T'}, {1e9, 'B'}, {1e6, 'M'}}) {
    if (tokens >= unit) return fmt::format("{:.4g}{}", tokens / unit, letter);
  }
  return plain(tokens);
}

std::string hours_words(double hours) {
  if (hours >= 1e6) return fmt::format("{:.3g} M", hours / 1e6);
  return hours >= 1e5 ? fmt::format("{:.3g} k", hours / 1e3) : thousands(hours);
}

std::vector<std::string> summary_sentences(const SizingReport& report) {
  std::vector<std::string> sentences;
  const auto add = [&](std::string sentence) {
    if (!sentence.empty()) sentences.push_back(std::move(sentence));
  };
  if (report.sweep.stopped) add("Interrupted: this is the best of what was tried until then.");
  if (!report.choice.recommended) {
    add("None: " + unmet_sentence(report) + ".");
    add(beyond_critical_sentence(report));
    return sentences;
  }
  const Sized& option = report.option(*report.choice.recommended);
  add(take_sentence(report, option));
  add(time_sentence(report, option));
  add(cost_sentence(report, option));
  add(chance_sentence(report, option));
  add(break_even_sentence(report));
  return sentences;
}

}  // namespace shardwright::cli
