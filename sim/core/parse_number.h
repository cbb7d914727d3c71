// SPDX-License-Identifier: Apache-2.0
// Text and doubles to numbers, with nothing lost on the way.
//
// The standard conversions stop at the first strange character, wrap around or truncate. These say
// no instead: the whole text must be the number, and an integer must be exactly that integer.
#pragma once

#include <cstdint>
#include <optional>
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

/// As parse_double, for integers: "4096", "2e12" and "64.0" are integers, "3.5" and "1e30" are not.
std::optional<std::int64_t> parse_int64(std::string_view text);

}  // namespace shardwright
