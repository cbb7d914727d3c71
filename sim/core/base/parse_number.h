// SPDX-License-Identifier: Apache-2.0
// Text and doubles to numbers, with nothing lost on the way.
//
// The standard conversions stop at the first strange character, wrap around or truncate. These say
// no instead: the whole text must be the number, and an integer must be exactly that integer.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// Values that a person gave, read strictly and under the name they were given by.
//
// A flag, a line of a run file and an environment variable are read alike: the whole word must be
// the value, and what is wrong is said in one sentence with the name, the value and what is
// accepted. A word that is no number is wrong usage (exit code 2), a number that cannot be taken is
// a bad value (exit code 3).

struct CountRange {
  std::int64_t least = 1;
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
  bool binary_k = false;  // 8k is 8192, as in the length of a context
};

/// "of at least 1", "from 1 to 4096": what a whole number must be.
std::string range_text(CountRange range);

struct RealRange {
  double least = -std::numeric_limits<double>::max();
  double most = std::numeric_limits<double>::max();
};

/// A whole number within `range`, as people write it ("15T", "32k", "1,024"; plain_number says
/// how); `name` is "--gpus" or "gpus in run.ini", for the Error.
std::int64_t parse_count(std::string_view name, std::string_view text, CountRange range = {});
/// A finite decimal number within `range`, as people write it ("$5M").
double parse_number(std::string_view name, std::string_view text, RealRange range = {});
/// A duration in days: "36h", "30d", "6w", "1y" (365 days). Above 0.
double parse_days(std::string_view name, std::string_view text);

/// "a,b" as {"a", "b"}; an empty text is one empty word.
std::vector<std::string> split_commas(std::string_view text);

/// Throws the Error for a word that is none of those accepted; it names the nearest one.
[[noreturn]] void fail_word(std::string_view name, std::string_view word,
                            const std::vector<std::string>& accepted);

}  // namespace shardwright
