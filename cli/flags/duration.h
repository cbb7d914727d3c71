// Durations as people type them: "30d", "36h", "6w".
#pragma once

#include <string_view>

namespace shardwright::cli {

/// In days. The number must be above 0, the unit h, d or w. Throws Error that names `flag`.
double parse_days(std::string_view flag, std::string_view text);

}  // namespace shardwright::cli
