// SPDX-License-Identifier: Apache-2.0
#include "cli/render/text/json_text.h"

#include <nlohmann/json.hpp>

namespace shardwright::cli {

std::string json_text(const nlohmann::ordered_json& document) {
  return document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

nlohmann::ordered_json errors_json(const profiles::ErrorSummary& errors) {
  return {{"n", errors.n}, {"mape", errors.mape}, {"median", errors.median}, {"p90", errors.p90}};
}

}  // namespace shardwright::cli
