#include "sim/core/parse_number.h"

#include <charconv>
#include <cmath>
#include <system_error>

namespace shardwright {

std::optional<std::int64_t> exact_integer(double value) {
  // 2^63 is a double; the largest double below it fits. The comparison is false for NaN.
  constexpr double kLimit = 9223372036854775808.0;
  if (!(value >= -kLimit && value < kLimit)) return std::nullopt;
  if (value != std::trunc(value)) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

std::optional<double> parse_double(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<std::int64_t> parse_int64(std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end) return value;
  // Digits alone that do not fit must not come back rounded by way of a double.
  if (text.find_first_of(".eE") == std::string_view::npos) return std::nullopt;
  const std::optional<double> as_double = parse_double(text);
  return as_double ? exact_integer(*as_double) : std::nullopt;
}

}  // namespace shardwright
