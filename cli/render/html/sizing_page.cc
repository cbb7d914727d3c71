// SPDX-License-Identifier: Apache-2.0
#include "cli/render/html/sizing_page.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

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

std::vector<std::string> sentences(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || !found->is_array() ? std::vector<std::string>{}
                                                     : found->get<std::vector<std::string>>();
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

std::string plan_of(const Json& option) {
  const Json& plan = option.at("plan");
  std::string text = fmt::format("{}, {} x {}", plan.at("strategy").get<std::string>(),
                                 plan.at("micro_batch").get<std::int64_t>(),
                                 plan.at("grad_accum").get<std::int64_t>());
  const auto layers = plan.at("ckpt_layers").get<std::int64_t>();
  if (layers > 0)
    text += fmt::format(", {} layers {}", layers, plan.at("recompute").get<std::string>());
  return text;
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

std::string options_table(const std::vector<const Json*>& options) {
  std::vector<std::vector<std::string>> rows;
  for (const Json* option : options) {
    if (rows.size() == kMostRows) break;
    rows.push_back(
        {option->at("cluster").get<std::string>(), thousands(option->at("gpus").get<double>()),
         days_words(option->at("days").get<double>()), range(*option, "days_interval", days_words),
         money(*option), percent(option->at("mfu").get<double>(), 0), plan_of(*option)});
  }
  return table({"cluster", "GPUs", "takes", "interval", "costs", "MFU", "plan"}, rows, 7);
}

/// Smaller is better: what meets the goal by its price, then what has none by its days, then what
/// misses the goal by its days.
std::tuple<bool, bool, double> preference(const Json& option) {
  const std::optional<double> usd = number(option, "cost_usd");
  const double days = option.at("days").get<double>();
  return {!meets(option), !usd, meets(option) && usd ? *usd : days};
}

/// The best option of each cluster, of those that train the same run.
std::string best_of_each(const Json& sizing) {
  const auto better = [](const Json& one, const Json& other) {
    return preference(one) < preference(other);
  };
  std::map<std::string, const Json*> best;
  for (const Json& option : sizing.at("options")) {
    if (option.value("over_critical_batch", false)) continue;
    const Json*& kept = best[option.at("cluster").get<std::string>()];
    if (kept == nullptr || better(option, *kept)) kept = &option;
  }
  std::vector<const Json*> options;
  for (const auto& [name, option] : best) options.push_back(option);
  std::stable_sort(options.begin(), options.end(),
                   [&](const Json* one, const Json* other) { return better(*one, *other); });
  return options.size() < 2 ? "" : options_table(options);
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
  std::vector<const Json*> options;
  for (const Json& option : pareto) options.push_back(&option);
  return body + options_table(options);
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
  return table(
      {"GPUs", "published trainings", "MFU, a quarter below", "half below", "three quarters below"},
      rows, 1);
}

}  // namespace

std::string sizing_page(const Json& sizing,
                        const std::vector<std::pair<std::string, std::string>>& provenance) {
  const Json& inputs = sizing.at("inputs");
  std::vector<std::string> words = sentences(sizing, "words");
  const std::string asked = fmt::format(
      "{} on {} tokens in sequences of {}", inputs.at("model").get<std::string>(),
      plain(inputs.at("tokens").get<double>()), inputs.at("seq_len").get<std::int64_t>());
  std::string body = element("h1", words.empty() ? asked : words.front());
  body += element("p", asked, "sub");
  if (!words.empty()) words.erase(words.begin());
  if (sizing.at("recommended").is_object()) body += sized_tiles(sizing.at("recommended"));
  body += section("In short", list(words));
  body += section("Days and dollars", front(sizing));
  body += section("The best size of each cluster", best_of_each(sizing));
  body += section("Break-even: the price at which each would win", break_even(sizing));
  if (const auto knee = sizing.find("knee"); knee != sizing.end() && knee->is_object())
    body += section("How it scales", list(sentences(*knee, "why")));
  body += section("What whole trainings reached", evidence(sizing));
  body += section("What this rests on", list(sentences(sizing, "assumptions")));
  std::vector<std::vector<std::string>> rows;
  for (const auto& [what, whence] : provenance) rows.push_back({what, whence});
  body += section("Where this comes from", table({}, rows, 2));
  return page("Shardwright: GPUs for " + asked, body);
}

}  // namespace shardwright::cli::html
