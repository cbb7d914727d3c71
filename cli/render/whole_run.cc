// SPDX-License-Identifier: Apache-2.0
#include "cli/render/whole_run.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/render/json/json_text.h"
#include "cli/render/sizing.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/table.h"
#include "cli/render/words/sizing.h"
#include "cli/text.h"
#include "tuner/size/size_batches.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

/// What `size` counts for steps of this size, because it chooses them for the GPUs and not for the
/// tokens.
double tokens_where_chosen(const WholeRunAnswer& answer) {
  return tuner::tokens_factor(answer.tokens_per_step, tuner::uncounted_tokens(answer.conditions),
                              answer.conditions.critical_tokens);
}

std::string tokens_taken_words(const WholeRunAnswer& answer) {
  constexpr double kSeen = 1.005;
  const double factor = answer.cost.tokens_factor, chosen = tokens_where_chosen(answer);
  const std::string taken =
      factor > 1 ? fmt::format(": {:.2f} times the tokens, which days and dollars include", factor)
                 : std::string(", and the tokens are taken as chosen for steps of this size");
  if (chosen < kSeen * factor) return taken;
  return taken +
         fmt::format("; size, which chooses the batch, counts {:.2f} times the tokens", chosen);
}

}  // namespace

std::string whole_run_text(const WholeRunAnswer& answer, const Terminal& out) {
  const tuner::RunCost& cost = answer.cost;
  const tuner::RunConditions& conditions = answer.conditions;
  std::string text =
      heading(out, fmt::format("The whole run, {} tokens", tokens_words(conditions.tokens)));
  Table table({{""}, {"", Align::kRight}, {""}});
  table.add_row(
      {"steps alone", days_words(cost.ideal_days), cost.ideal_usd ? dollars(*cost.ideal_usd) : ""});
  table.add_row({"as published runs went",
                 {days_words(cost.days), Style::kBold},
                 cost.usd ? dollars(*cost.usd) : "the price is unknown"});
  table.add_row({"interval",
                 fmt::format("{} to {}", days_words(cost.days_interval[0]),
                             days_words(cost.days_interval[1])),
                 cost.usd_interval ? fmt::format("{} to {}", dollars((*cost.usd_interval)[0]),
                                                 dollars((*cost.usd_interval)[1]))
                                   : ""});
  text += table.render(out);
  std::vector<std::string> sentences;
  const profiles::Production& production = conditions.production;
  if (production.known()) {
    sentences.push_back(fmt::format(
        "Published trainings like it took {:.2f} times their ideal steps; the interval holds "
        "{:.0f} % of "
        "them and what offers of the same kind ask. Fitted on {}; {} of {} trainings inside when "
        "refitted without their family.",
        cost.production.middle, 100 * production.level, production.source,
        production.family_out.inside, production.family_out.n));
  }
  if (answer.price.known()) {
    const auto& origin = answer.price.origin;
    sentences.push_back(fmt::format("On demand at {:.2f} USD per GPU hour: {}{}{}.",
                                    answer.price.usd_per_gpu_hour, origin.source,
                                    origin.date.empty() ? "" : ", ", origin.date));
  }
  sentences.push_back(
      fmt::format("A step takes {:.3g} M tokens; the critical batch is about {:.3g} M ({}){}.",
                  answer.tokens_per_step / 1e6, conditions.critical_tokens / 1e6,
                  conditions.critical_words, tokens_taken_words(answer)));
  if (const auto kwh = answer.energy.kwh(answer.gpu, cost.gpu_hours))
    sentences.push_back(energy_words(answer.energy, answer.gpu, *kwh));
  for (const std::string& sentence : sentences) {
    for (const std::string& line : wrap(sentence, out.columns)) text += line + "\n";
  }
  return text;
}

Json whole_run_json(const WholeRunAnswer& answer) {
  const tuner::RunCost& cost = answer.cost;
  return {{"tokens", answer.conditions.tokens},
          {"days", cost.days},
          {"days_interval", cost.days_interval},
          {"interval_level", answer.conditions.production.level},
          {"cost_usd", or_null(cost.usd)},
          {"cost_usd_interval", or_null(cost.usd_interval)},
          {"gpu_hours", cost.gpu_hours},
          {"energy", energy_json(answer.energy, answer.gpu, cost.gpu_hours)},
          {"step_only", {{"days", cost.ideal_days}, {"cost_usd", or_null(cost.ideal_usd)}}},
          {"production_factor", cost.production.middle},
          {"tokens_factor", cost.tokens_factor},
          {"tokens_factor_in_size", tokens_where_chosen(answer)},
          {"critical_tokens_per_step", answer.conditions.critical_tokens},
          {"whole_run_mfu", cost.whole_mfu}};
}

}  // namespace shardwright::cli
