#include "cli/flags/duration.h"

#include <fmt/core.h>

#include <optional>

#include "sim/core/error.h"
#include "sim/core/parse_number.h"

namespace shardwright::cli {
namespace {

std::optional<double> days_of(char unit) {
  switch (unit) {
    case 'h':
      return 1.0 / 24;
    case 'd':
      return 1.0;
    case 'w':
      return 7.0;
    default:
      return std::nullopt;
  }
}

}  // namespace

double parse_days(std::string_view flag, std::string_view text) {
  constexpr double kMost = 1e6;
  const std::optional<double> days = text.empty() ? std::nullopt : days_of(text.back());
  const std::optional<double> number =
      days ? parse_double(text.substr(0, text.size() - 1)) : std::nullopt;
  if (!number) {
    throw Error(
        fmt::format("{} is '{}', but it must be a number with a unit, as in 36h, 30d or 6w.", flag,
                    text),
        ExitCode::kUsage);
  }
  if (*number <= 0 || *number * *days > kMost) {
    throw Error(
        fmt::format("{} is {}, but it must be above 0 and at most {} days.", flag, text, kMost));
  }
  return *number * *days;
}

}  // namespace shardwright::cli
