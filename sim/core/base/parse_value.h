// SPDX-License-Identifier: Apache-2.0
// Values that a person gave, read strictly and under the name they were given by.
//
// A flag, a line of a run file and an environment variable are read alike: the whole word must be
// the value, and what is wrong is said in one sentence with the name, the value and what is
// accepted. A word that is no number is wrong usage (exit code 2), a number that cannot be taken is
// a bad value (exit code 3).
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright {

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
