// SPDX-License-Identifier: Apache-2.0
#include "cli/mcp/brief.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

// Of these the document says the same elsewhere, or nobody asks an assistant for them; the least
// missed first.
constexpr std::array<std::string_view, 21> kBesides = {"options",
                                                       "left_out",
                                                       "pareto",
                                                       "simulated",
                                                       "savings",
                                                       "inputs",
                                                       "whole_run_mfu_reached",
                                                       "cheapest_in_time",
                                                       "fastest_in_budget",
                                                       "cheapest",
                                                       "fastest",
                                                       "in_the_middle",
                                                       "smallest",
                                                       "smallest_safe",
                                                       "robustness",
                                                       "assumptions",
                                                       "timeline",
                                                       "considered",
                                                       "if_off",
                                                       "other_software",
                                                       "runs_here"};
// Of every option of `size`.
constexpr std::array<std::string_view, 12> kOfOptions = {"plan",
                                                         "price",
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

std::size_t length_of(const Json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).size();
}

double to_five_digits(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double unit = std::pow(10, 4 - std::floor(std::log10(std::abs(value))));
  return std::round(value * unit) / unit;
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

void drop_from_options(Json& list) {
  const auto drop = [](Json& option) {
    if (!option.is_object() || !option.contains("plan_words")) return;
    for (const std::string_view key : kOfOptions) option.erase(std::string(key));
  };
  if (list.is_array()) {
    for (Json& option : list) drop(option);
  } else {
    drop(list);
  }
}

/// The list that takes the most room, of more than `kept` elements; null where there is none.
Json* longest_list(Json& json, std::size_t kept) {
  Json* longest = nullptr;
  std::size_t most = 0;
  const auto look = [&](auto&& self, Json& node) -> void {
    if (node.is_array() && node.size() > kept && length_of(node) > most) {
      most = length_of(node);
      longest = &node;
    }
    if (node.is_structured()) {
      for (Json& child : node) self(self, child);
    }
  };
  look(look, json);
  return longest;
}

}  // namespace

Json brief_answer(const Json& document, std::size_t most) {
  if (!document.is_object() || length_of(document) < most) return document;
  constexpr std::size_t kOwn = 300;  // letters of what is said about the rest
  const std::size_t room = most > kOwn ? most - kOwn : most;
  Json brief = plainer(document);
  std::vector<std::string> left_out;
  if (length_of(brief) >= room && brief.contains("best_of_each")) {
    for (auto& [key, value] : brief.items()) drop_from_options(value);
  }
  for (const std::string_view key : kBesides) {
    if (length_of(brief) < room) break;
    if (brief.erase(std::string(key)) > 0) left_out.emplace_back(key);
  }
  bool shortened = false;
  for (const std::size_t kept : {3, 2, 1, 0}) {
    while (length_of(brief) >= room) {
      Json* list = longest_list(brief, kept);
      if (list == nullptr) break;
      list->erase(list->size() - 1);
      shortened = true;
    }
  }
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
                        {"lists", shortened ? "cut at their ends" : "whole"},
                        {"all_of_it", "call again with full=true"}};
  return brief;
}

}  // namespace shardwright::cli
