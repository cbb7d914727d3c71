// SPDX-License-Identifier: Apache-2.0
#include "cli/render/words/sizing.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/render/sizing.h"
#include "cli/render/text/quantity.h"
#include "cli/render/words/plan.h"
#include "profiles/prices/price.h"
#include "tuner/runs/run_cost.h"
#include "tuner/search/space.h"

namespace shardwright::cli {

std::string energy_words(const profiles::Energy& energy, const std::string& gpu, double kwh) {
  const double drawn = energy.drawn_watts(gpu).value_or(0);
  const double board = energy.watts.find(gpu)->second;
  std::string power = fmt::format("{:g} W a board", drawn);
  if (drawn < board) {
    power = fmt::format("{:g} of {:g} W a board, at {} of its clocks", drawn, board,
                        percent(profiles::clock_share(energy, gpu, drawn), 0));
  }
  const auto amount = [](double thousand) {
    return thousand < 10 ? fmt::format("{:.3g}", thousand) : thousands(thousand);
  };
  return fmt::format(
      "That is about {} MWh ({}, {:g} times board power for the node, PUE {:g}) and {} t of CO2 "
      "at {:g} kg a kWh.",
      amount(kwh / 1e3), power, energy.rest_of_node, energy.pue,
      amount(kwh * energy.grid_kg_per_kwh / 1e3), energy.grid_kg_per_kwh);
}

nlohmann::ordered_json energy_json(const profiles::Energy& energy, const std::string& gpu,
                                   double gpu_hours) {
  const auto kwh = energy.kwh(gpu, gpu_hours);
  if (!kwh) return nullptr;
  return {{"kwh", *kwh},
          {"kg_co2", *kwh * energy.grid_kg_per_kwh},
          {"watts", *energy.drawn_watts(gpu)}};
}

namespace {

using tuner::Sized;

constexpr double kLittle = 0.05;  // more dollars that a faster option is worth a sentence for

std::string days_and_price(const Sized& option) {
  return option.cost.usd ? dollars(*option.cost.usd) : "an unknown sum";
}

std::string brief(const SizingReport& report, const Sized& option) {
  return fmt::format("{}, {}, {}", fleet_words(report, option), days_words(option.cost.days),
                     days_and_price(option));
}

std::string goal_words(const tuner::Goal& goal) {
  std::vector<std::string> parts;
  if (goal.deadline_days) {
    parts.push_back(fmt::format("the deadline of {}", days_words(*goal.deadline_days)));
  }
  if (goal.budget_usd) parts.push_back(fmt::format("the budget of {}", dollars(*goal.budget_usd)));
  return fmt::format("{}", fmt::join(parts, " and "));
}

std::string price_room_sentence(const SizingReport& report, const Sized& option) {
  if (!report.goal.budget_usd || !option.cost.usd) return "";
  return fmt::format(
      "The budget holds up to {:.2f} USD per GPU hour.",
      report.offer_of(option).usd_per_gpu_hour * *report.goal.budget_usd / *option.cost.usd);
}

/// The fastest option that costs little more.
std::string faster_sentence(const SizingReport& report, const Sized& option) {
  if (!option.cost.usd) return "";
  for (const std::size_t i : report.choice.pareto) {
    const Sized& other = report.option(i);
    if (other.cost.days > 0.8 * option.cost.days) break;
    if (*other.cost.usd > *option.cost.usd * (1 + kLittle) || !tuner::meets(other, report.goal))
      continue;
    const double more = *other.cost.usd / *option.cost.usd - 1;
    return fmt::format("For {} {} dollars, {} finish in {}.", percent(std::abs(more)),
                       more < 0 ? "fewer" : "more", fleet_words(report, other),
                       days_words(other.cost.days));
  }
  return "";
}

std::string elsewhere_sentence(const SizingReport& report, const Sized& option) {
  for (const std::size_t i : report.best_of_each) {
    const Sized& other = report.option(i);
    if (other.offer == option.offer || tuner::estimate_only(report.offer_of(other)) ||
        !tuner::meets(other, report.goal) || !other.cost.usd)
      continue;
    return fmt::format("Next best elsewhere: {}.", brief(report, other));
  }
  return "";
}

std::string millions_of_tokens(double tokens) {
  return fmt::format("{:.3g} M", tokens / 1e6);
}

std::string range_words(double least, double most, int digits) {
  const std::string low = fmt::format("{:.{}f}", least, digits);
  const std::string high = fmt::format("{:.{}f}", most, digits);
  return low == high ? low : low + " to " + high;
}

std::string batch_sentence(const SizingReport& report, const Sized& option) {
  const tuner::RunConditions& run = report.job.run;
  const std::string text = fmt::format(
      "A step takes {:g} sequences ({} tokens); the critical batch after these tokens is about {} "
      "tokens ({})",
      option.tokens_per_step / static_cast<double>(report.job.fixed.seq_len),
      millions_of_tokens(option.tokens_per_step), millions_of_tokens(run.critical_tokens),
      run.critical_words);
  if (option.cost.tokens_factor > 1) {
    return fmt::format(
        "Warning: {}; published trainings took up to {}, and steps this large need {:.2f} times "
        "the "
        "tokens of steps of {}, which days and dollars include.",
        text, millions_of_tokens(run.published_tokens), option.cost.tokens_factor,
        millions_of_tokens(run.free_tokens));
  }
  const auto [least, most] = tuner::tokens_of_tiny_steps(option.tokens_per_step, run);
  const std::string own =
      option.tokens_per_step > tuner::kUsualOverhead * run.critical_tokens &&
              option.tokens_per_step <= run.own_published_tokens
          ? fmt::format("; a published training of this model took steps of {} tokens",
                        millions_of_tokens(run.own_published_tokens))
          : "";
  return fmt::format(
      "{}{}. The tokens are taken as chosen for steps of this size; by these laws tiny steps reach "
      "the same loss with {} times less.",
      text, own, range_words(least, most, 2));
}

/// What data parallelism alone takes on the same GPUs, for whoever has its software.
std::string plain_sentence(const Sized& option) {
  if (!option.plain) return "";
  const double more = option.plain->days / option.cost.days - 1;
  return fmt::format("With {} on {} the same GPUs take {} ({} more).",
                     name_of(option.plain->plan.strategy), option.plain->plan.stack,
                     days_words(option.plain->days), percent(more, 0));
}

/// Electricity beside dollars.
std::string energy_sentence(const SizingReport& report, const Sized& option) {
  const profiles::Energy& energy = report.energy;
  const std::optional<double> kwh =
      energy.kwh(report.offer_of(option).profile.cluster.gpu.id, option.cost.gpu_hours);
  if (!kwh) return "";
  return energy_words(energy, report.offer_of(option).profile.cluster.gpu.id, *kwh);
}

/// Published trainings of the very model.
std::string published_sentence(const SizingReport& report, const Sized& option) {
  if (report.published.empty()) return "";
  std::vector<std::string> runs;
  for (const profiles::WholeRun& run : report.published) {
    runs.push_back(fmt::format("{}: {} tokens, {} GPU hours on {}{}", run.id,
                               tokens_words(run.tokens), hours_words(run.gpu_hours), run.gpu,
                               run.gpus ? fmt::format(" ({} GPUs)", *run.gpus) : ""));
  }
  return fmt::format("Published trainings of this model: {}. This answer: {} tokens, {} GPU hours.",
                     fmt::join(runs, "; "), tokens_words(report.job.run.tokens),
                     hours_words(option.cost.gpu_hours));
}

std::string failure_sentence(const Sized& option, const tuner::RunConditions& run) {
  const tuner::Goodput& goodput = option.cost.goodput;
  const auto seconds = [](double value) { return quantity(std::round(value * 10) / 10, "s"); };
  return fmt::format(
      "Expect an interruption every {}; with a checkpoint every {}, which takes {} to write and "
      "holds "
      "training up for {}, failures alone leave {} of the time useful, which the days and dollars "
      "include{}.",
      days_words(goodput.mtbf_s / 86400), days_words(goodput.interval_s / 86400),
      seconds(goodput.write_s), seconds(goodput.checkpoint_s), percent(goodput.share),
      run.mtbf_range[0] > 0 ? ", and their intervals what operators report of failures" : "");
}

/// The part of the growth that is largest.
std::string main_cause(const tuner::Causes& causes, double dearer) {
  struct GrowthPart {
    double share;
    const char* words;
  };
  const GrowthPart parts[] = {
      {causes.communication, "communication that no kernel hides"},
      {causes.compute, "kernels, which are smaller or recompute more"},
      {causes.host, "the host"},
      {causes.optimizer, "the optimizer"},
      {causes.tokens, "steps so large that they need more tokens"},
      {causes.failures, "failures and restarts"},
  };
  const auto* most =
      std::max_element(std::begin(parts), std::end(parts),
                       [](const GrowthPart& a, const GrowthPart& b) { return a.share < b.share; });
  return fmt::format("{} of that is {}", percent(std::min(1.0, most->share / dearer), 0),
                     most->words);
}

double sequences_per_gpu(const Sized& option) {
  return static_cast<double>(option.prediction.plan.micro_batch *
                             option.prediction.plan.grad_accum);
}

}  // namespace

std::string days_words(double days) {
  const auto with_unit = [](double value, const char* unit) {
    const std::string number = value < 100 ? fmt::format("{:.3g}", value) : thousands(value);
    return fmt::format("{} {}{}", number, unit, number == "1" ? "" : "s");
  };
  if (days < 2.0 / 24) return with_unit(days * 1440, "minute");
  if (days < 2) return with_unit(days * 24, "hour");
  if (days > 3650) return with_unit(days / 365, "year");
  return with_unit(days, "day");
}

std::string fleet_words(const SizingReport& report, const Sized& option) {
  return counted(option.gpus(), "GPU") + " of " + report.offer_of(option).name;
}

std::vector<std::string> detail_sentences(const SizingReport& report) {
  std::vector<std::string> sentences;
  const auto add = [&](std::string sentence) {
    if (!sentence.empty()) sentences.push_back(std::move(sentence));
  };
  if (!report.choice.recommended) return sentences;
  const Sized& option = report.option(*report.choice.recommended);
  add(published_sentence(report, option));
  add(plain_sentence(option));
  add(software_sentence(tuner::profile_for(report.offer_of(option), option.prediction.plan)));
  for (std::string& sentence : money_sentences(report, option)) add(std::move(sentence));
  add(price_room_sentence(report, option));
  add(faster_sentence(report, option));
  add(elsewhere_sentence(report, option));
  add(failure_sentence(option, report.job.run));
  add(energy_sentence(report, option));
  add(batch_sentence(report, option));
  return sentences;
}

std::vector<std::string> recommendation_sentences(const SizingReport& report) {
  std::vector<std::string> sentences = summary_sentences(report);
  for (std::string& sentence : detail_sentences(report)) sentences.push_back(std::move(sentence));
  return sentences;
}

std::string beyond_critical_sentence(const SizingReport& report) {
  if (!report.choice.beyond_critical) return "";
  const Sized& option = report.option(*report.choice.beyond_critical);
  return fmt::format(
      "With steps of {} tokens {} would ({}, {}), but the critical batch is about {} tokens ({}): "
      "larger steps cost tokens instead of saving time. --global-batch {:.0f} tries it.",
      millions_of_tokens(option.tokens_per_step), fleet_words(report, option),
      days_words(option.cost.days), days_and_price(option),
      millions_of_tokens(report.job.run.critical_tokens), report.job.run.critical_words,
      option.tokens_per_step / static_cast<double>(report.job.fixed.seq_len));
}

std::string unmet_sentence(const SizingReport& report) {
  const tuner::Choice& choice = report.choice;
  if (report.sweep.options.empty()) {
    // Of the most GPUs: where memory is the reason, that one comes closest.
    const auto& left = report.sweep.left_out;
    const auto nearest = std::max_element(
        left.begin(), left.end(), [](const auto& a, const auto& b) { return a.gpus < b.gpus; });
    return fmt::format("there is no plan for {} on what was asked for; on {} GPUs of {}: {}",
                       report.model_name, nearest->gpus, report.offers[nearest->offer].name,
                       nearest->reason);
  }
  std::string text = fmt::format("{}nothing meets {}",
                                 report.sweep.stopped ? "interrupted; of what was tried " : "",
                                 goal_words(report.goal));
  const char* separator = ": ";
  const auto add = [&](const char* words, std::optional<std::size_t> index) {
    if (!index) return;
    text += fmt::format("{}{} is {}", separator, words, brief(report, report.option(*index)));
    separator = "; ";
  };
  add("the cheapest", choice.cheapest);
  add("the fastest", choice.fastest);
  if (report.goal.deadline_days && report.goal.budget_usd) {
    add("the cheapest in time", choice.cheapest_in_time);
    add("the fastest within the budget", choice.fastest_in_budget);
  }
  return text;
}

std::vector<std::string> scaling_sentences(const SizingReport& report) {
  std::vector<std::string> sentences;
  const tuner::Scaling& scaling = *report.scaling;
  if (!scaling.knee) return sentences;
  const Sized& knee = report.option(*scaling.knee);
  if (scaling.stops) {
    const tuner::Growth& stops = scaling.growth[*scaling.stops];
    const tuner::Causes& causes = *scaling.causes;
    const Sized& after = report.option(stops.to);
    sentences.push_back(
        fmt::format("More GPUs stop paying at {}: {} take {:.2f} times less, so the run costs {} "
                    "more GPU time; "
                    "{}. Latency, which grows with the number of ranks, takes {} of their step.",
                    knee.gpus(), after.gpus(), stops.speedup, percent(stops.dearer, 0),
                    main_cause(causes, stops.dearer), percent(causes.latency, 0)));
    if (sequences_per_gpu(after) < sequences_per_gpu(knee)) {
      sentences.push_back(fmt::format(
          "The batch is the reason behind it: each GPU is left with {:g} sequence{} of a step "
          "instead of {:g}, and the same weights and gradients to send.",
          sequences_per_gpu(after), sequences_per_gpu(after) == 1 ? "" : "s",
          sequences_per_gpu(knee)));
    }
  } else {
    sentences.push_back(fmt::format(
        "Up to {} GPUs every doubling pays: it brings at least {:.0f} % of the speed that "
        "the GPUs added.",
        knee.gpus(), 100 * tuner::kPaying));
  }
  if (scaling.batch_limit) {
    sentences.push_back(
        report.job.fixed.global_batch
            ? fmt::format(
                  "Beyond, the batch is the limit: a --global-batch of {} sequences leaves no "
                  "whole sequence for each of more GPUs.",
                  *report.job.fixed.global_batch)
            : fmt::format("Beyond, the batch is the limit: with a sequence for each of more GPUs a "
                          "step would take more than the critical batch, about {:.3g} M tokens. "
                          "--global-batch lifts that limit.",
                          report.job.run.critical_tokens / 1e6));
  }
  return sentences;
}

std::vector<std::string> assumption_sentences(const SizingReport& report) {
  std::vector<std::string> sentences;
  const auto source_of = [&](const char* path) {
    const auto at = report.operations.origins.find(path);
    return at == report.operations.origins.end() ? std::string{} : at->second.source;
  };
  const tuner::SizingJob& job = report.job;
  const profiles::Production& production = job.run.production;
  if (production.known()) {
    sentences.push_back(fmt::format(
        "Whole runs: fitted on {} ({}); {} of {} trainings inside when refitted without their "
        "family.",
        production.source, production.command, production.family_out.inside,
        production.family_out.n));
  }
  const bool own_mtbf = job.run.mtbf_gpu_hours != report.operations.mtbf_gpu_hours;
  sentences.push_back(fmt::format(
      "Failures: one GPU runs {} hours between interruptions ({}), a restart takes {} s{}.",
      thousands(job.run.mtbf_gpu_hours),
      own_mtbf ? "--mtbf-hours" : source_of("failures.mtbf_gpu_hours"), job.run.restart_s,
      job.run.checkpoint_s
          ? fmt::format(", a checkpoint {} s", *job.run.checkpoint_s)
          : fmt::format("; each GPU writes {} and storage takes {} of a checkpoint of 12 bytes a "
                        "parameter, not more often than every {}",
                        quantity(job.run.gpu_bytes_per_s, "byte/s"),
                        quantity(job.run.storage_bytes_per_s, "byte/s"),
                        days_words(job.run.least_interval_s / 86400))));
  if (report.choice.recommended) {
    const Sized& option = report.option(*report.choice.recommended);
    const profiles::Profile profile =
        tuner::profile_for(report.offer_of(option), option.prediction.plan);
    for (const NumberOrigin& origin : number_origins(profile, option.prediction)) {
      // Of prices and of whole runs the recommendation says more.
      if (origin.what == "price" || origin.what == "interval") continue;
      sentences.push_back(fmt::format("Steps, {}: {}.", origin.what, origin.words));
    }
    for (const std::string& what : option.prediction.extrapolated)
      sentences.push_back(fmt::format("Extrapolated: {}.", what));
  }
  sentences.push_back(
      fmt::format("Considered: {} plans for {} in {}; {} simulated; {:.1f} s.",
                  thousands(report.sweep.considered),
                  counted(report.sweep.options.size() + report.sweep.left_out.size(), "size"),
                  counted(report.offers.size(), "cluster"), thousands(report.sweep.simulated),
                  report.sweep.seconds));
  return sentences;
}

std::vector<std::string> savings_lines(const SizingReport& report) {
  const tuner::Savings& savings = *report.savings;
  const tuner::Offer& offer = report.offers[savings.offer];
  const std::string_view fast = name_of(savings.faster.plan.strategy);
  const std::string_view slow = name_of(savings.slower.plan.strategy);
  const double fast_rate = savings.faster.time.tokens_per_gpu_s;
  const double slow_rate = savings.slower.time.tokens_per_gpu_s;
  const double fleet = static_cast<double>(savings.gpus);
  const tuner::EqualThroughput& equal = savings.equal;
  std::vector<std::string> lines;
  lines.push_back(fmt::format("{} GPUs with {}: {} x {:.1f} = {} tokens/s", savings.gpus, slow,
                              savings.gpus, slow_rate, thousands(fleet * slow_rate)));
  lines.push_back(fmt::format("{} needs {} / {:.1f} = {:.1f} GPUs for that: {:.1f} less ({})", fast,
                              thousands(fleet * slow_rate), fast_rate, equal.gpus_needed,
                              equal.gpus_saved, percent(equal.gpus_saved / fleet)));
  if (equal.usd_per_month) {
    lines.push_back(fmt::format("{:.1f} x {:.2f} USD x {:.0f} h = {} a month", equal.gpus_saved,
                                offer.usd_per_gpu_hour, tuner::kHoursPerMonth,
                                dollars(*equal.usd_per_month)));
  } else {
    lines.push_back(
        fmt::format("the price of {} is unknown; --price {}=USD tells it", offer.name, offer.name));
  }
  lines.push_back(fmt::format("in whole nodes, {} tuned anew on {} GPUs: {} tokens/s, {} GPUs less",
                              fast, savings.whole_node_gpus,
                              thousands(savings.whole_node_tokens_per_s),
                              savings.gpus - savings.whole_node_gpus));
  const auto is = [&](Strategy a, Strategy b) {
    return savings.faster.plan.strategy == a && savings.slower.plan.strategy == b;
  };
  if (is(Strategy::kYafsdp, Strategy::kFsdp1) && equal.gpus_saved > 0) {
    lines.push_back(fmt::format(
        "the 150 GPUs of the YaFSDP announcement are saved by a fleet of {:.0f}; its 0.5 to 1.5 M "
        "USD a month are 4.57 to 13.70 USD per GPU hour",
        150 * fleet / equal.gpus_saved));
  }
  for (const Strategy strategy : {savings.faster.plan.strategy, savings.slower.plan.strategy}) {
    const Strategy executed = tuner::executed_as(strategy, offer.profile.stack);
    if (executed == strategy) continue;
    lines.push_back(fmt::format(
        "the framework {} runs {} by the schedule of {}; --stack hf-eager runs it as PyTorch does",
        offer.profile.stack.id, name_of(strategy), name_of(executed)));
  }
  return lines;
}

namespace {

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
