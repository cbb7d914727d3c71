// SPDX-License-Identifier: Apache-2.0
#include "profiles/import/trace_numbers.h"

#include <cmath>
#include <limits>

#include "sim/core/base/parse_number.h"

namespace shardwright::profiles {
namespace {

constexpr std::int64_t kLargestNumber = std::numeric_limits<std::int64_t>::max();

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

/// `text` times 10^decimals, rounded; digits and one point only.
std::optional<std::int64_t> scaled_decimal(std::string_view text, int decimals) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  std::int64_t value = 0;
  bool digits = false, point = false, round_up = false;
  int taken = 0;  // decimals
  for (const char c : text) {
    if (c == '.' && !point) {
      point = true;
      continue;
    }
    if (c < '0' || c > '9') return std::nullopt;
    digits = true;
    if (point && taken >= decimals) {
      if (taken++ == decimals) round_up = c >= '5';
      continue;
    }
    if (point) ++taken;
    if (value > (kLargestNumber - 9) / 10) return std::nullopt;
    value = value * 10 + (c - '0');
  }
  if (!digits) return std::nullopt;
  for (; taken < decimals; ++taken) {
    if (value > kLargestNumber / 10) return std::nullopt;
    value *= 10;
  }
  if (round_up) ++value;
  return negative ? -value : value;
}

std::optional<std::int64_t> scaled(std::string_view text, int decimals) {
  text = trimmed(text);
  if (const auto value = scaled_decimal(text, decimals)) return value;
  const auto number = parse_double(text);
  if (!number) return std::nullopt;
  const double value = std::round(*number * std::pow(10.0, decimals));
  return exact_integer(value);
}

}  // namespace

std::optional<Nanoseconds> microseconds_to_ns(std::string_view text) {
  return scaled(text, 3);
}

std::optional<std::int64_t> integer_of(std::string_view text) {
  return scaled(text, 0);
}

}  // namespace shardwright::profiles
