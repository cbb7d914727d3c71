// SPDX-License-Identifier: Apache-2.0
#include "cli/render/html/sizing_page.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/render/html/html.h"
#include "cli/render/html/money_picture.h"
#include "cli/render/sizing.h"
#include "cli/render/text/quantity.h"

namespace shardwright::cli::html {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostRows = 8;  // of a table, so that all of it prints on two pages

std::optional<double> number(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

/// Whoever signs has no command line: parts of a sentence that name a flag are left out.
std::string without_flags(const std::string& sentence) {
  std::string kept;
  for (std::size_t at = 0; at < sentence.size();) {
    const std::size_t point = sentence.find_first_of(".;", at);
    // A point between digits ends nothing.
    std::size_t end = point;
    while (end != sentence.npos && end + 1 < sentence.size() && sentence[end + 1] != ' ')
      end = sentence.find_first_of(".;", end + 1);
    const std::string part =
        sentence.substr(at, end == sentence.npos ? sentence.npos : end + 1 - at);
    if (part.find("--") == part.npos) kept += part;
    at = end == sentence.npos ? sentence.size() : end + 1;
  }
  if (kept.ends_with(';')) kept.back() = '.';
  return kept;
}

std::vector<std::string> sentences(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return {};
  std::vector<std::string> list;
  for (const Json& one : *found) {
    std::string sentence = without_flags(one.get<std::string>());
    if (!sentence.empty()) list.push_back(std::move(sentence));
  }
  return list;
}

std::string money(const Json& option) {
  const std::optional<double> usd = number(option, "cost_usd");
  return usd ? dollars(*usd) : "no price";
}

/// "48.9 days to 59.9 days", of the pair under `key`.
std::string range(const Json& option, const char* key, std::string (*words)(double)) {
  const auto found = option.find(key);
  if (found == option.end() || !found->is_array() || found->size() != 2) return "";
  return fmt::format("{} to {}", words((*found)[0].get<double>()),
                     words((*found)[1].get<double>()));
}

bool meets(const Json& option) {
  const Json& goals = option.at("meets");
  // Null where it was not asked for.
  return goals.at("deadline") != Json(false) && goals.at("budget") != Json(false);
}

std::string sized_tile(const char* label, const std::string& value, const std::string& note) {
  return fmt::format("<div class=\"tile\"><span>{}</span><b>{}</b><span>{}</span></div>\n", label,
                     escape(value), escape(note));
}

std::string sized_tiles(const Json& option) {
  std::string body = "<div class=\"tiles\">\n";
  body += sized_tile("take", fmt::format("{} GPUs", thousands(option.at("gpus").get<double>())),
                     fmt::format("{} ({})", option.at("cluster").get<std::string>(),
                                 option.at("gpu").get<std::string>()));
  body += sized_tile("for", days_words(option.at("days").get<double>()),
                     range(option, "days_interval", days_words));
  body += sized_tile("and", money(option), range(option, "cost_usd_interval", dollars));
  if (const auto ideal = option.find("step_only"); ideal != option.end() && ideal->is_object()) {
    body += sized_tile("steps alone", days_words(ideal->at("days").get<double>()), money(*ideal));
  } else {
    body += sized_tile("at", percent(option.at("mfu").get<double>()) + " MFU",
                       thousands(option.at("tokens_per_s").get<double>()) + " tokens/s");
  }
  return body + "</div>\n";
}

std::string options_table(const Json& options) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::size_t> marked;
  bool estimates = false;
  for (const Json& option : options) {
    if (rows.size() == kMostRows) break;
    std::string name = option.at("cluster").get<std::string>();
    if (option.value("estimate_only", false)) {
      estimates = true;
      name += " (nothing measured)";
    }
    if (option.value("recommended", false)) marked.push_back(rows.size());
    rows.push_back({std::move(name), thousands(option.at("gpus").get<double>()),
                    days_words(option.at("days").get<double>()),
                    range(option, "days_interval", days_words), money(option),
                    percent(option.at("mfu").get<double>(), 0),
                    option.at("plan_words").get<std::string>()});
  }
  std::string body =
      table({"cluster", "GPUs", "takes", "interval", "costs", "MFU", "plan"}, rows, 7, marked);
  if (estimates)
    body += element("p", "Nothing measured: rates of these GPUs are estimates.", "note");
  return body;
}

std::string front(const Json& sizing) {
  const Json& inputs = sizing.at("inputs");
  const auto same = [](const Json& one, const Json& other) {
    return other.is_object() && one.at("cluster") == other.at("cluster") &&
           one.at("gpus") == other.at("gpus") && one.at("days") == other.at("days");
  };
  const Json& pareto = sizing.at("pareto");
  std::vector<OptionPoint> points;
  for (const Json& option : sizing.at("options")) {
    const std::optional<double> usd = number(option, "cost_usd");
    if (!usd || *usd <= 0) continue;
    OptionPoint point{.days = option.at("days").get<double>(), .usd = *usd};
    point.words = fmt::format("{} GPUs of {}: {}, {}", option.at("gpus").get<std::int64_t>(),
                              option.at("cluster").get<std::string>(), days_words(point.days),
                              dollars(point.usd));
    point.meets = meets(option);
    point.chosen = same(option, sizing.at("recommended"));
    point.front = std::any_of(pareto.begin(), pareto.end(),
                              [&](const Json& other) { return same(option, other); });
    points.push_back(point);
  }
  std::string body =
      money_picture(points, number(inputs, "deadline_days"), number(inputs, "budget_usd"));
  if (body.empty()) return "";
  return body + options_table(pareto);
}

std::string break_even(const Json& sizing) {
  const auto found = sizing.find("break_even");
  if (found == sizing.end() || !found->is_array()) return "";
  std::vector<std::vector<std::string>> rows;
  for (const Json& entry : *found) {
    const std::optional<double> wins = number(entry, "break_even_usd_per_gpu_hour");
    const std::optional<double> listed = number(entry, "usd_per_gpu_hour");
    if (!wins || rows.size() == kMostRows) continue;
    std::string list = listed ? fmt::format("{:.2f}", *listed) : "no price";
    if (const auto price = entry.find("price"); price != entry.end() && price->is_object()) {
      list += fmt::format(
          " ({}, {})", price->value("kind", ""),
          price->at("date").is_string() ? price->at("date").get<std::string>() : "undated");
    }
    rows.push_back({entry.at("cluster").get<std::string>(),
                    thousands(entry.at("gpus").get<double>()), fmt::format("{:.2f}", *wins), list});
  }
  return table({"cluster", "GPUs", "would win at, USD a GPU hour", "is listed at"}, rows, 4);
}

/// What whole published trainings reached, beside which the answer can be held.
std::string evidence(const Json& sizing) {
  const auto found = sizing.find("whole_run_mfu_reached");
  if (found == sizing.end() || !found->is_object()) return "";
  std::vector<std::vector<std::string>> rows;
  for (const auto& [generation, reached] : found->items()) {
    const Json& quartiles = reached.at("mfu_quartiles");
    if (!quartiles.is_array() || quartiles.size() != 3) continue;
    rows.push_back({generation, fmt::format("{}", reached.at("n").get<std::int64_t>()),
                    percent(quartiles[0].get<double>()), percent(quartiles[1].get<double>()),
                    percent(quartiles[2].get<double>())});
  }
  return table({"GPUs", "published trainings", "MFU, lower quartile", "median", "upper quartile"},
               rows, 1);
}

}  // namespace

std::string sizing_page(const Json& sizing,
                        const std::vector<std::pair<std::string, std::string>>& provenance) {
  const Json& inputs = sizing.at("inputs");
  // For whoever signs: what the summary leaves out of `words` is detail, told further below.
  std::vector<std::string> words = sentences(sizing, "summary");
  std::vector<std::string> details = sentences(sizing, "words");
  if (words.empty()) std::swap(words, details);
  std::erase_if(details, [&](const std::string& one) {
    return std::find(words.begin(), words.end(), one) != words.end();
  });
  const std::string asked = fmt::format(
      "{} on {} tokens in sequences of {}", inputs.at("model").get<std::string>(),
      tokens_words(inputs.at("tokens").get<double>()), inputs.at("seq_len").get<std::int64_t>());
  std::string body = element("h1", words.empty() ? asked : words.front());
  body += element("p", asked, "sub");
  if (const Json& usual = inputs.value("usual_length", Json()); usual.is_string())
    body += element("p", usual.get<std::string>(), "sub");
  if (!words.empty()) words.erase(words.begin());
  if (sizing.at("recommended").is_object()) body += sized_tiles(sizing.at("recommended"));
  body += section("In short", list(words));
  body += section("Days and dollars", front(sizing));
  if (const auto best = sizing.find("best_of_each"); best != sizing.end() && best->size() > 1)
    body += section("The best size of each cluster", options_table(*best));
  body += section("Break-even: the price at which each would win", break_even(sizing));
  if (const auto knee = sizing.find("knee"); knee != sizing.end() && knee->is_object())
    body += section("How it scales", list(sentences(*knee, "why")));
  body += section("What training runs reached", evidence(sizing));
  body += section("Behind it", list(details));
  body += section("What this rests on", list(sentences(sizing, "assumptions")));
  std::vector<std::vector<std::string>> rows;
  for (const auto& [what, whence] : provenance) rows.push_back({what, whence});
  body += section("Where this comes from", table({}, rows, 2));
  return page("Shardwright: GPUs for " + asked, body);
}

}  // namespace shardwright::cli::html
