// SPDX-License-Identifier: Apache-2.0
// A value in JSON where there is one, or null. Whoever calls it includes <nlohmann/json.hpp>.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

namespace shardwright::cli {

template <typename Value, typename Json = nlohmann::ordered_json>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace shardwright::cli
