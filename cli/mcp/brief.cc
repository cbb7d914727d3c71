// SPDX-License-Identifier: Apache-2.0
#include "cli/mcp/brief.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/base/parse_number.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

// Of these the document says the same elsewhere, or nobody asks an assistant for them; the least
// missed first.
constexpr std::array<std::string_view, 29> kBesides = {"options",
                                                       "left_out",
                                                       "simulated",
                                                       "predicted_in_full",
                                                       "seconds_with_reasons",
                                                       "pruned",
                                                       "rejected",
                                                       "if_off",
                                                       "savings",
                                                       "pareto",
                                                       "timeline",
                                                       "considered",
                                                       "cheapest_in_time",
                                                       "fastest_in_budget",
                                                       "cheapest",
                                                       "fastest",
                                                       "robustness",
                                                       "in_the_middle",
                                                       "smallest",
                                                       "smallest_safe",
                                                       "seconds",
                                                       "other_software",
                                                       "whole_run_mfu_reached",
                                                       "assumptions",
                                                       "nearest_feasible",
                                                       "origins",
                                                       "novelty",
                                                       "runs_here",
                                                       "inputs"};
// Of every option of `size`.
constexpr std::array<std::string_view, 11> kOfOptions = {"price",
                                                         "production",
                                                         "goodput",
                                                         "extrapolated",
                                                         "price_source",
                                                         "mfu",
                                                         "step_only",
                                                         "meets",
                                                         "gpu",
                                                         "iteration_time_interval_s",
                                                         "memory_total_bytes"};
// Of options beside the recommended one.
constexpr std::array<std::string_view, 7> kOfOthers = {
    "energy",           "data_parallel",       "interval_level", "tokens_per_step",
    "iteration_time_s", "over_critical_batch", "tokens_per_s"};
// Of predictions beside other answers, the least missed first.
constexpr std::array<std::string_view, 7> kOfPredictions = {
    "origins",  "novelty", "runs_here", "stages", "exposed_communication_by_group",
    "pipeline", "schema"};

std::size_t length_of(const Json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).size();
}

double to_five_digits(double value) {
  return parse_double(fmt::format("{:.5g}", value)).value_or(value);
}

/// Without nulls, empty lists and digits beyond the fifth.
Json plainer(const Json& json) {
  if (json.is_number_float()) return to_five_digits(json.get<double>());
  if (json.is_array()) {
    Json result = Json::array();
    for (const Json& element : json) result.push_back(plainer(element));
    return result;
  }
  if (!json.is_object()) return json;
  Json result = Json::object();
  for (const auto& [key, value] : json.items()) {
    const bool empty = value.is_null() || (value.is_structured() && value.empty());
    if (!empty) result[key] = plainer(value);
  }
  return result;
}

/// Every object below `node`, the innermost first.
template <typename Visit>
void for_each_object(Json& node, const Visit& visit) {
  if (!node.is_structured()) return;
  for (Json& child : node) for_each_object(child, visit);
  if (node.is_object()) visit(node);
}

/// A plan that was weighed: what it is in words and what it comes to, instead of all that is
/// predicted of it.
void shorten_weighed(Json& weighed) {
  const Json prediction = weighed.at("prediction");
  const Json& inputs = prediction.at("inputs");
  weighed.erase("plan");
  weighed.erase("prediction");
  weighed.erase("if_off");
  weighed["plan_words"] = inputs.at("plan_words");
  weighed["stack"] = inputs.at("plan").at("stack");
  for (const char* key : {"iteration_time_s", "tokens_per_s", "mfu"})
    weighed[key] = prediction.at(key);
  for (const char* key : {"total_bytes", "verdict"}) weighed[key] = prediction.at("memory").at(key);
}

/// Plans but for the answer's own are told in words.
void shorten_plans(Json& document) {
  Json best = document.value("best", Json());
  for_each_object(document, [](Json& object) {
    const bool weighed = object.contains("plan") && object.contains("prediction") &&
                         object["prediction"].contains("inputs");
    if (weighed) {
      shorten_weighed(object);
    } else if (object.contains("knob") ||
               (object.contains("plan_words") && !object.contains("parameters"))) {
      object.erase("plan");
    }
  });
  if (!best.is_object()) return;
  best.erase("if_off");
  if (best.contains("prediction")) best["prediction"]["inputs"].erase("plan");
  document["best"] = std::move(best);
}

/// The words of `size` begin with its summary.
void drop_repeated(Json& document) {
  Json rest = Json::array();
  for (const Json& sentence : document["words"]) {
    const Json& told = document["summary"];
    if (std::find(told.begin(), told.end(), sentence) == told.end()) rest.push_back(sentence);
  }
  document["words"] = std::move(rest);
}

void drop_from_options(Json& document) {
  const auto erase = [](Json& option, const auto& keys) {
    for (const std::string_view key : keys) option.erase(std::string(key));
  };
  Json recommended = document.value("recommended", Json());
  for_each_object(document, [&](Json& option) {
    if (option.contains("break_even_usd_per_gpu_hour")) option.erase("price");
    if (!option.contains("gpu_hours") || !option.contains("plan_words")) return;
    erase(option, kOfOptions);
    erase(option, kOfOthers);
  });
  if (!recommended.is_object()) return;
  erase(recommended, kOfOptions);
  document["recommended"] = std::move(recommended);
}

/// Of the best plan and of those that are compared.
void drop_from_predictions(Json& document, std::size_t room) {
  std::vector<Json*> predictions;
  if (const auto best = document.find("best");
      best != document.end() && best->is_object() && best->contains("prediction")) {
    predictions.push_back(&(*best)["prediction"]);
  }
  if (const auto compared = document.find("predictions"); compared != document.end()) {
    for (Json& one : *compared) {
      if (one.contains("inputs")) one["inputs"] = {{"plan_words", one["inputs"]["plan_words"]}};
      predictions.push_back(&one);
    }
  }
  for (const std::string_view key : kOfPredictions) {
    if (length_of(document) < room) return;
    for (Json* one : predictions) one->erase(std::string(key));
  }
}

/// A list of objects or sentences; one of numbers, such as an interval, means something as a whole.
struct LongList {
  Json* list = nullptr;
  std::string name;  // its key
};

/// The one that takes the most room, of more than `kept` elements.
LongList longest_list(Json& json, std::size_t kept) {
  LongList longest;
  std::size_t most = 0;
  const auto look = [&](auto&& self, const std::string& name, Json& node) -> void {
    if (node.is_array() && node.size() > kept && !node.front().is_number() &&
        length_of(node) > most) {
      most = length_of(node);
      longest = {&node, name};
    }
    if (node.is_object()) {
      for (auto& [key, child] : node.items()) self(self, key, child);
    } else if (node.is_array()) {
      for (Json& child : node) self(self, name, child);
    }
  };
  look(look, "", json);
  return longest;
}

/// Cuts lists at their ends, the longest first; says of each how many of its elements are left out.
Json cut_lists(Json& brief, std::size_t room) {
  Json cut = Json::object();
  for (const std::size_t kept : {3, 2, 1, 0}) {
    while (length_of(brief) + length_of(cut) >= room) {
      const LongList longest = longest_list(brief, kept);
      if (longest.list == nullptr) break;
      longest.list->erase(longest.list->size() - 1);
      cut[longest.name] = cut.value(longest.name, 0) + 1;
    }
  }
  return cut;
}

}  // namespace

Json brief_answer(const Json& document, std::size_t most) {
  if (!document.is_object() || length_of(document) < most) return document;
  constexpr std::size_t kOwn = 300;  // letters of what is said about the rest
  const std::size_t room = most > kOwn ? most - kOwn : most;
  Json brief = plainer(document);
  std::vector<std::string> left_out;
  if (brief.contains("summary") && brief.contains("words")) drop_repeated(brief);
  if (length_of(brief) >= room) shorten_plans(brief);
  if (length_of(brief) >= room) drop_from_options(brief);
  for (const std::string_view key : kBesides) {
    if (length_of(brief) < room) break;
    if (brief.erase(std::string(key)) > 0) left_out.emplace_back(key);
  }
  if (length_of(brief) >= room) drop_from_predictions(brief, room);
  const Json cut = cut_lists(brief, room);
  // What is still too long has large members.
  while (length_of(brief) >= room && brief.size() > 1) {
    std::string largest;
    std::size_t length = 0;
    for (const auto& [key, value] : brief.items()) {
      if (key != "schema" && length_of(value) > length) {
        length = length_of(value);
        largest = key;
      }
    }
    if (largest.empty()) break;
    brief.erase(largest);
    left_out.push_back(std::move(largest));
  }
  brief["shortened"] = {{"left_out", left_out},
                        {"cut_from_the_ends_of", cut},
                        {"all_of_it", "call again with full=true"}};
  return brief;
}

}  // namespace shardwright::cli
