// SPDX-License-Identifier: Apache-2.0
// One JSON document as every verb prints it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace shardwright::cli {

/// Indented by two, keys in the order in which they were added, no newline at the end. Text that is
/// not UTF-8 (a file name may hold any bytes) is made printable instead of failing.
std::string json_text(const nlohmann::ordered_json& document);

}  // namespace shardwright::cli
