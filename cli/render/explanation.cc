// SPDX-License-Identifier: Apache-2.0
#include "cli/render/explanation.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/render/prediction.h"
#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"
#include "cli/render/words/why.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string share_of(double part, double whole) {
  return percent(part / whole, 0);
}

std::string kernel_words(const sim::PartTimes& part) {
  std::vector<std::string> shares;
  const auto add = [&](double time_s, const char* what) {
    if (time_s >= 0.005 * part.kernels_s && time_s > 0) {
      shares.push_back(fmt::format("{} {}", share_of(time_s, part.kernels_s), what));
    }
  };
  add(part.products_s, "GEMMs");
  add(part.attention_s, "attention");
  add(part.memory_bound_s, "memory-bound kernels");
  return fmt::format("kernels run for {} ({})", duration(part.kernels_s), fmt::join(shares, ", "));
}

std::string collective_words(const sim::PartTimes& part) {
  std::vector<std::string> words;
  if (part.gathers > 0) {
    words.push_back(
        fmt::format("{} of {} in all", counted(part.gathers, "gather"), duration(part.gathers_s)));
  }
  if (part.reductions > 0) {
    words.push_back(fmt::format("{} of {} in all", counted(part.reductions, "reduction"),
                                duration(part.reductions_s)));
  }
  return fmt::format("{}", fmt::join(words, " and "));
}

std::string capitalized(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 32);
  return text;
}

std::string part_sentence(sim::StepPart which, const sim::PartTimes& part, double step_s) {
  std::string text =
      fmt::format("{} takes {} ({} of the step)", capitalized(std::string(name_of(which))),
                  duration(part.total_s()), share_of(part.total_s(), step_s));
  const std::string collectives = collective_words(part);
  switch (part.bound()) {
    case sim::Bound::kCommunication:
      text += fmt::format(" and is bound by communication: {}, and {} more go by waiting for {}",
                          kernel_words(part), duration(part.awaits_communication_s),
                          collectives.empty() ? "collectives" : collectives);
      break;
    case sim::Bound::kHost:
      text += fmt::format(" and is bound by the host: {}, and {} more go by waiting for launches",
                          kernel_words(part), duration(part.awaits_host_s));
      break;
    case sim::Bound::kKernels:
      text += fmt::format(" and is bound by its kernels: {}", kernel_words(part));
      if (!collectives.empty()) {
        text += fmt::format("; all but {} of {} hide behind them",
                            duration(part.awaits_communication_s), collectives);
      }
  }
  return text + ".";
}

std::string ends_sentence(const sim::PartTimes& part, double step_s) {
  return fmt::format(
      "The ends take {} ({} of the step): {} wait for the first gathers and the last reductions, "
      "which nothing hides, {} for the host between steps, and {} are kernels that prepare.",
      duration(part.total_s()), share_of(part.total_s(), step_s),
      duration(part.awaits_communication_s), duration(part.awaits_host_s),
      duration(part.kernels_s));
}

std::string change_words(const sim::Change& change) {
  return change.also.empty() ? change.what : fmt::format("{} ({})", change.what, change.also);
}

/// The change of `kind` that buys most and fits, if it buys something.
const sim::Change* best(const std::vector<sim::Change>& changes, sim::ChangeKind kind) {
  const auto at = std::find_if(changes.begin(), changes.end(), [&](const sim::Change& change) {
    return change.kind == kind && change.fits && change.gain > 0.005;
  });
  return at == changes.end() ? nullptr : &*at;
}

/// What somebody can do first: of the plan, then of the machine; nobody moves to another framework
/// for a few percent. Each kind the best first.
std::vector<sim::Change> by_reach(std::vector<sim::Change> changes) {
  const auto rank = [](const sim::Change& change) {
    switch (change.kind) {
      case sim::ChangeKind::kPlan:
        return 0;
      case sim::ChangeKind::kHardware:
        return 1;
      case sim::ChangeKind::kSoftware:
        break;
    }
    return 2;
  };
  std::stable_sort(changes.begin(), changes.end(),
                   [&](const sim::Change& a, const sim::Change& b) { return rank(a) < rank(b); });
  return changes;
}

std::string best_sentence(const std::vector<sim::Change>& changes) {
  std::vector<std::string> words;
  for (const sim::ChangeKind kind : {sim::ChangeKind::kPlan, sim::ChangeKind::kHardware}) {
    if (const sim::Change* change = best(changes, kind)) {
      words.push_back(fmt::format("in {}, {}: {:+.0f} % tokens/s", name_of(kind),
                                  change_words(*change), 100 * change->gain));
    }
  }
  if (words.empty()) return "No single change that was tried buys anything and fits.";
  return fmt::format("What one change buys most, predicted anew: {}.", fmt::join(words, "; "));
}

/// Both orders of equal priorities, where they differ.
std::string ties_sentence(const sim::Prediction& prediction) {
  constexpr double kNoticeable = 0.002;
  const double step_s = prediction.time.iteration_s, other_s = prediction.other_tie_order_s;
  if (other_s <= 0 || std::abs(other_s / step_s - 1) < kNoticeable) return "";
  return fmt::format(
      "Among kernels of equal priority the compute stream goes first; were it the copies of "
      "sharding, the step would take {} ({:+.1f} %). Half of the spread is in the interval.",
      duration(other_s), 100 * (other_s / step_s - 1));
}

}  // namespace

std::vector<std::string> explanation_sentences(const sim::Explanation& explanation) {
  const double step_s = explanation.base.time.iteration_s;
  std::vector<std::string> sentences;
  for (int i = 0; i < sim::kStepParts; ++i) {
    const auto which = static_cast<sim::StepPart>(i);
    const sim::PartTimes& part = explanation.parts[static_cast<std::size_t>(i)];
    if (part.total_s() <= 0) continue;
    sentences.push_back(which == sim::StepPart::kEnds ? ends_sentence(part, step_s)
                                                      : part_sentence(which, part, step_s));
  }
  if (std::string ties = ties_sentence(explanation.base); !ties.empty())
    sentences.push_back(std::move(ties));
  const std::vector<sim::Change> changes = by_reach(explanation.changes);
  if (explanation.base.memory.verdict == sim::MemoryVerdict::kDoesNotFit) {
    const auto saves = std::find_if(changes.begin(), changes.end(),
                                    [](const sim::Change& change) { return change.fits; });
    sentences.push_back(saves == changes.end()
                            ? "It does not fit, and no single change that was tried makes it fit."
                            : fmt::format("It does not fit; of the changes that make it fit, the "
                                          "fastest is: {}.",
                                          change_words(*saves)));
  }
  sentences.push_back(best_sentence(changes));
  return sentences;
}

std::string explanation_text(const sim::Explanation& explanation, const Terminal& out) {
  std::string text = heading(out, "What bounds it");
  text += sentences_text(explanation_sentences(explanation), out);
  text += heading(out, "One change, predicted anew");
  Table table({"change", "of", right("iteration"), right("tokens/s"), right("memory"), "fits"});
  std::vector<std::string> software;
  for (const sim::Change& change : by_reach(explanation.changes)) {
    if (change.kind == sim::ChangeKind::kSoftware) {
      software.push_back(fmt::format("{} {:+.0f} %{}", change_words(change), 100 * change.gain,
                                     change.fits ? "" : " (does not fit)"));
      continue;
    }
    table.add_row({change_words(change), name_of(change.kind), duration(change.iteration_s),
                   fmt::format("{:+.1f} %", 100 * change.gain), bytes(change.total_bytes),
                   change.fits ? Cell("yes", Style::kGreen) : Cell("no", Style::kRed)});
  }
  text += table.render(out);
  if (software.empty()) return text;
  return text + paragraph(fmt::format("Other software: {}.", fmt::join(software, ", ")), out);
}

Json explanation_json(const Model& model, const sim::Explanation& explanation) {
  Json parts = Json::array();
  for (int i = 0; i < sim::kStepParts; ++i) {
    const sim::PartTimes& part = explanation.parts[static_cast<std::size_t>(i)];
    if (explanation.base.stages.size() > 1) break;  // its stages are told apart instead
    parts.push_back({{"part", name_of(static_cast<sim::StepPart>(i))},
                     {"seconds", part.total_s()},
                     {"bound_by", name_of(part.bound())},
                     {"kernels_s", part.kernels_s},
                     {"matrix_products_s", part.products_s},
                     {"attention_s", part.attention_s},
                     {"memory_bound_s", part.memory_bound_s},
                     {"awaits_communication_s", part.awaits_communication_s},
                     {"awaits_host_s", part.awaits_host_s},
                     {"gathers_s", part.gathers_s},
                     {"reductions_s", part.reductions_s}});
  }
  Json changes = json_list(by_reach(explanation.changes), [&](const sim::Change& change) -> Json {
    return {{"change", change.what},
            {"of", name_of(change.kind)},
            {"also", text_or_null(change.also)},
            {"iteration_time_s", change.iteration_s},
            {"tokens_per_s_gain", change.gain},
            {"total_bytes", change.total_bytes},
            {"fits", change.fits}};
  });
  return {{"sentences", explanation_sentences(explanation)},
          {"tie_orders",
           {{"compute_first_s", explanation.base.time.iteration_s},
            {"side_streams_first_s", explanation.base.other_tie_order_s}}},
          {"parts", std::move(parts)},
          {"changes", std::move(changes)},
          {"losses", losses_json(explanation.base)},
          {"rule_of_thumb", rule_of_thumb_json(model, explanation.base)}};
}

}  // namespace shardwright::cli
