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

// A value in JSON where there is one, or null. Whoever calls it includes <nlohmann/json.hpp>.

template <typename Value, typename Json = nlohmann::ordered_json>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace shardwright::cli
