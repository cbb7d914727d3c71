// SPDX-License-Identifier: Apache-2.0
// One JSON document as every verb prints it, and what several of them hold.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "profiles/gpu_cost.h"

namespace shardwright::cli {

/// Indented by two, keys in the order in which they were added, no newline at the end. Text that is
/// not UTF-8 (a file name may hold any bytes) is made printable instead of failing.
std::string json_text(const nlohmann::ordered_json& document);

/// How far a model misses what it was held against: n, mape, median, p90.
nlohmann::ordered_json errors_json(const profiles::ErrorSummary& errors);

// Values where there are any, or null, and lists. Whoever calls these includes <nlohmann/json.hpp>.

template <typename Value, typename Json = nlohmann::ordered_json>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

template <typename Json = nlohmann::ordered_json>
Json text_or_null(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

/// What `told` makes of each element of `list`.
template <typename List, typename Told, typename Json = nlohmann::ordered_json>
Json json_list(const List& list, Told told) {
  Json json = Json::array();
  for (const auto& element : list) json.push_back(told(element));
  return json;
}

}  // namespace shardwright::cli
