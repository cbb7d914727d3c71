// SPDX-License-Identifier: Apache-2.0
// How `size` shows what it found: the recommendation in words first, then tables and a chart for
// people; the contract's JSON for programs.
#pragma once

#include <chrono>
#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/render/text/terminal.h"
#include "profiles/ledger/whole_runs.h"
#include "profiles/operations.h"
#include "profiles/prices/price.h"
#include "tuner/size/sizing.h"
#include "tuner/size/sizing_choice.h"

namespace shardwright::cli {

/// Everything that is told.
struct SizingReport {
  std::string model_name;
  Model model;
  std::vector<std::string> overrides;  // --set
  std::vector<tuner::Offer> offers;
  profiles::PriceKind price_kind = profiles::PriceKind::kOnDemand;
  std::chrono::sys_days today{};  // that the age of prices is counted to
  tuner::SizingJob job;
  std::optional<std::string> usual_length;  // where sequences are as long as is usual: what that is
  profiles::Operations operations;
  profiles::Energy energy;
  tuner::Goal goal;
  tuner::Sweep sweep;
  tuner::Choice choice;
  std::vector<std::size_t> best_of_each;
  std::vector<tuner::BreakEven> break_even;
  std::optional<tuner::Scaling> scaling;      // of the offer that the recommendation is about
  std::optional<tuner::Savings> savings;      // --compare
  std::vector<profiles::WholeRun> published;  // trainings of this very model

  const tuner::Sized& option(std::size_t index) const { return sweep.options[index]; }
  const tuner::Offer& offer_of(const tuner::Sized& option) const { return offers[option.offer]; }
};

/// "17.3 days", "5.2 hours".
std::string days_words(double days);
/// "1024 GPUs of dgx-h100".
std::string fleet_words(const SizingReport& report, const tuner::Sized& option);

/// What the price at which another cluster would have won is; none for the winner.
std::optional<double> break_even_of(const SizingReport& report, std::size_t offer);

/// "15T".
std::string tokens_words(double tokens);
/// "7.86 M", "832 k".
std::string hours_words(double hours);

/// For whoever signs, at most five: what, how long, how much, the chance to miss, what flips it.
std::vector<std::string> summary_sentences(const SizingReport& report);
/// What is behind them.
std::vector<std::string> detail_sentences(const SizingReport& report);
/// Both.
std::vector<std::string> recommendation_sentences(const SizingReport& report);
/// What would meet the goal if the batch were let grow; empty where nothing would.
std::string beyond_critical_sentence(const SizingReport& report);
/// The prices at which the nearest other clusters would win.
std::string break_even_sentence(const SizingReport& report);
std::vector<std::string> scaling_sentences(const SizingReport& report);
/// Steps alone, what published trainings took, prices with date and source, where they flip.
std::vector<std::string> money_sentences(const SizingReport& report, const tuner::Sized& option);
std::vector<std::string> assumption_sentences(const SizingReport& report);
/// One sentence: what was asked for cannot be met, and what comes closest.
std::string unmet_sentence(const SizingReport& report);
/// The computation of `savings`, line by line.
std::vector<std::string> savings_lines(const SizingReport& report);

std::string sizing_text(const SizingReport& report, const Terminal& out);
nlohmann::ordered_json sizing_json(const SizingReport& report);

}  // namespace shardwright::cli
