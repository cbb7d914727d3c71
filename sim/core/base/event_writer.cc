// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/event_writer.h"

#include <nlohmann/json.hpp>

namespace shardwright {

std::string json_string(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string microseconds(Nanoseconds ns) {
  const Nanoseconds size = ns < 0 ? -ns : ns;
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", size / 1000, size % 1000);
}

}  // namespace shardwright
