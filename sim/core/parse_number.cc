// SPDX-License-Identifier: Apache-2.0
#include "sim/core/parse_number.h"

#include <locale.h>
#include <stdlib.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <string>
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
#ifdef __cpp_lib_to_chars
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value)) return std::nullopt;
  return value;
#else
  return parse_double_by_locale(text);
#endif
}

std::optional<double> parse_double_by_locale(std::string_view text) {
  // strtod also takes blanks, a plus, hexadecimal numbers and names.
  const bool plain = text.find_first_not_of("0123456789.eE+-") == std::string_view::npos;
  if (text.empty() || !plain || text.front() == '+') return std::nullopt;
  static const locale_t c_locale = newlocale(LC_ALL_MASK, "C", nullptr);
  const std::string terminated(text);
  char* stop = nullptr;
  errno = 0;
  const double value = strtod_l(terminated.c_str(), &stop, c_locale);
  const bool underflow = errno == ERANGE && value == 0;
  if (stop != terminated.c_str() + terminated.size() || underflow || !std::isfinite(value)) {
    return std::nullopt;
  }
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
