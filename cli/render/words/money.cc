// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "cli/render/sizing.h"
#include "cli/render/text/quantity.h"
#include "profiles/prices/price.h"

namespace shardwright::cli {
namespace {

using tuner::Sized;

constexpr std::size_t kBreakEvens = 3;  // in words; the table has all

std::string steps_sentence(const SizingReport& report, const Sized& option) {
  const tuner::RunCost& cost = option.cost;
  std::string text = fmt::format("The steps alone would take {}{}", days_words(cost.ideal_days),
                                 cost.ideal_usd ? " and " + dollars(*cost.ideal_usd) : "");
  if (!report.job.run.production.known()) return text + ".";
  return text + fmt::format(
                    "; published trainings like it took {:.2f} times their ideal steps, {:.2f} to "
                    "{:.2f} at {:.0f} % ({}).",
                    cost.production.middle,
                    cost.production.middle * std::exp(-cost.production.half_widths[0]),
                    cost.production.middle * std::exp(cost.production.half_widths[1]),
                    100 * cost.level,
                    cost.production.beyond_fit
                        ? "none of them on such a GPU or of such a size"
                        : "failures, restarts, evaluation, stragglers, checkpoints, data");
}

/// What teams reached, beside what this answer assumes.
std::string reached_sentence(const SizingReport& report, const Sized& option) {
  const double peak = report.offer_of(option).profile.cluster.gpu.peak_bf16_flops;
  const std::string generation = profiles::generation_of(peak);
  const auto& reached = report.job.run.production.reached;
  const auto at = reached.find(generation);
  const std::string here =
      fmt::format("Over the whole run that is {:.0f} % of the 16-bit peak (6 N a token)",
                  100 * option.cost.whole_mfu);
  if (at == reached.end() || at->second.n < 4) {
    return reached.empty() ? ""
                           : here + fmt::format(
                                        "; no four trainings on {} GPUs are published to "
                                        "compare it with.",
                                        generation);
  }
  return here + fmt::format(
                    "; the middle half of {} published trainings on {} GPUs reached {:.0f} "
                    "to {:.0f} %.",
                    at->second.n, generation, 100 * at->second.mfu[0], 100 * at->second.mfu[2]);
}

std::string price_sentence(const SizingReport& report, const Sized& option) {
  const tuner::Offer& offer = report.offer_of(option);
  const profiles::Price& price = offer.price;
  if (!price.known()) {
    return fmt::format("No {} price of {} is known; --price {}=USD tells it.",
                       name_of(report.price_kind), offer.name, offer.name);
  }
  if (price.origin.source == "--price") return "";
  std::string text =
      fmt::format("All prices are {} ones; {:.2f} USD for {}: {}", name_of(report.price_kind),
                  price.usd_per_gpu_hour, offer.name, tuner::price_source(offer));
  if (price.range[0] < price.range[1]) {
    text += fmt::format("; {:.2f} to {:.2f} USD, {}, are in the interval of dollars",
                        price.range[0], price.range[1], price.range_source);
  }
  return text + fmt::format(". --price {}=USD sets yours.", offer.name);
}

/// Clusters that would have been cheaper by estimates alone.
std::string estimates_sentence(const SizingReport& report) {
  std::vector<std::string> names;
  for (const tuner::Offer& offer : report.offers) {
    if (offer.shown_only) names.push_back(offer.name);
  }
  if (names.empty()) return "";
  return fmt::format(
      "Shown, never recommended, because nothing was measured on their GPUs: {}; "
      "--clusters with their names compares them.",
      fmt::join(names, ", "));
}

std::string age_sentence(const SizingReport& report) {
  std::vector<std::string> old;
  for (const std::size_t i : report.best_of_each) {
    const tuner::Offer& offer = report.offer_of(report.option(i));
    const auto age = profiles::age_days(offer.price.origin.date, report.today);
    if (offer.price.known() && age && *age > profiles::kFreshDays)
      old.push_back(fmt::format("{} ({} days)", offer.name, *age));
  }
  if (old.empty()) return "";
  constexpr std::size_t kMost = 6;
  const std::size_t more = old.size() > kMost ? old.size() - kMost : 0;
  if (more > 0) old.resize(kMost);
  return fmt::format("Warning: prices older than {} days: {}{}.", profiles::kFreshDays,
                     fmt::join(old, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

/// " (now 2.99)"; of GPUs on which nothing was measured that, too.
std::string now_words(const tuner::Offer& offer) {
  const std::string now = offer.price.known() ? fmt::format("now {:.2f}", offer.usd_per_gpu_hour)
                                              : std::string("no price known");
  return fmt::format(" ({}{})", now, tuner::estimate_only(offer) ? ", nothing measured" : "");
}

}  // namespace

std::optional<double> break_even_of(const SizingReport& report, std::size_t offer) {
  for (const tuner::BreakEven& entry : report.break_even) {
    if (entry.offer == offer) return entry.usd_per_gpu_hour;
  }
  return std::nullopt;
}

std::string break_even_sentence(const SizingReport& report) {
  std::vector<std::string> parts;
  for (const tuner::BreakEven& entry : report.break_even) {  // the nearest first
    const tuner::Offer& offer = report.offers[entry.offer];
    if (offer.shown_only || parts.size() == kBreakEvens) break;
    parts.push_back(
        fmt::format("{} below {:.2f} USD{}", offer.name, entry.usd_per_gpu_hour, now_words(offer)));
  }
  if (parts.empty()) return "";
  return fmt::format("The answer flips with prices: {} would win.", fmt::join(parts, ", "));
}

std::vector<std::string> money_sentences(const SizingReport& report, const Sized& option) {
  std::vector<std::string> sentences;
  for (std::string sentence :
       {steps_sentence(report, option), reached_sentence(report, option),
        price_sentence(report, option), age_sentence(report), estimates_sentence(report)}) {
    if (!sentence.empty()) sentences.push_back(std::move(sentence));
  }
  return sentences;
}

}  // namespace shardwright::cli
