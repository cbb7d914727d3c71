// SPDX-License-Identifier: Apache-2.0
// Text and doubles to numbers, with nothing lost on the way.
//
// The standard conversions stop at the first strange character, wrap around or truncate. These say
// no instead: the whole text must be the number, and an integer must be exactly that integer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardwright {

/// The integer that `value` is exactly; none for fractions, NaN, infinities and what int64 cannot
/// hold.
std::optional<std::int64_t> exact_integer(double value);

/// A finite number in decimal or exponent notation ("12", "-0.5", "2e12"); the whole text must
/// match.
std::optional<double> parse_double(std::string_view text);

/// The same by the C library, for standard libraries whose from_chars knows no floating point: what
/// parse_double uses there.
std::optional<double> parse_double_by_locale(std::string_view text);

/// A number as people write it, in the notation that the two around it read: "15T" is "15e12", and
/// k, M, B or G, and T stand for 1e3, 1e6, 1e9 and 1e12 in either case; "$5,000,000" is "5000000".
/// None for what has no such shape; text without these marks comes back as it is.
std::optional<std::string> plain_number(std::string_view text);

/// `value` with `digits` significant decimal digits, so that data files stay readable.
double rounded(double value, int digits = 5);

/// As parse_double, for integers: "4096", "2e12" and "64.0" are integers, "3.5" and "1e30" are not.
std::optional<std::int64_t> parse_int64(std::string_view text);

}  // namespace shardwright
