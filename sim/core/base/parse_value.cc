// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/parse_value.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "sim/core/base/error.h"
#include "sim/core/base/nearest.h"
#include "sim/core/base/parse_number.h"

namespace shardwright {
namespace {

std::string range_text(RealRange range) {
  const RealRange all;
  if (range.most == all.most && range.least == all.least) return "finite";
  if (range.most == all.most) return fmt::format("at least {}", range.least);
  if (range.least == all.least) return fmt::format("at most {}", range.most);
  return fmt::format("from {} to {}", range.least, range.most);
}

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::optional<double> days_of(std::string_view unit) {
  struct Unit {
    std::string_view letter, word;
    double days;
  };
  constexpr Unit kUnits[] = {{"h", "hour", 1.0 / 24},
                             {"d", "day", 1},
                             {"w", "week", 7},
                             {"", "month", 365.0 / 12},
                             {"y", "year", 365}};
  for (const Unit& known : kUnits) {
    const bool letter = !unit.empty() && unit == known.letter;
    if (letter || unit == known.word ||
        (unit.ends_with('s') && known.word == unit.substr(0, unit.size() - 1)))
      return known.days;
  }
  return std::nullopt;
}

/// "8k" where k is 1024.
std::optional<std::int64_t> binary_count(std::string_view text) {
  if (!text.ends_with('k') && !text.ends_with('K')) return std::nullopt;
  const std::optional<double> number = parse_double(text.substr(0, text.size() - 1));
  return number ? exact_integer(*number * 1024) : std::nullopt;
}

}  // namespace

std::string range_text(CountRange range) {
  return range.most == CountRange{}.most ? fmt::format("of at least {}", range.least)
                                         : fmt::format("from {} to {}", range.least, range.most);
}

std::int64_t parse_count(std::string_view name, std::string_view text, CountRange range) {
  const std::string plain = plain_number(text).value_or(std::string(text));
  std::optional<std::int64_t> value = range.binary_k ? binary_count(text) : std::nullopt;
  if (!value) value = parse_int64(plain);
  if (value && *value >= range.least && *value <= range.most) return *value;
  if (value || is_digits(plain) || parse_double(plain)) {
    throw Error(
        fmt::format("{} is {}, but it must be a whole number {}.", name, text, range_text(range)));
  }
  throw Error(
      fmt::format("{} is '{}', but it must be a whole number {}.", name, text, range_text(range)),
      ExitCode::kUsage);
}

double parse_number(std::string_view name, std::string_view text, RealRange range) {
  const std::optional<double> value = parse_double(plain_number(text).value_or(std::string(text)));
  if (!value) {
    throw Error(
        fmt::format("{} is '{}', but it must be a number, {}.", name, text, range_text(range)),
        ExitCode::kUsage);
  }
  if (*value < range.least || *value > range.most) {
    throw Error(fmt::format("{} is {}, but it must be {}.", name, text, range_text(range)));
  }
  return *value;
}

double parse_days(std::string_view name, std::string_view text) {
  constexpr double kMost = 1e6;
  const std::size_t end = text.find_last_of("0123456789.") + 1;  // 0: none
  const std::string_view rest = text.substr(end);
  const std::optional<double> days =
      days_of(rest.substr(std::min(rest.find_first_not_of(' '), rest.size())));
  const std::optional<double> number = days ? parse_double(text.substr(0, end)) : std::nullopt;
  if (!number) {
    throw Error(
        fmt::format("{} is '{}', but it must be a number with a unit, as in 36h, 30d, 6w or 1y.",
                    name, text),
        ExitCode::kUsage);
  }
  if (*number <= 0 || *number * *days > kMost) {
    throw Error(
        fmt::format("{} is {}, but it must be above 0 and at most {} days.", name, text, kMost));
  }
  return *number * *days;
}

std::vector<std::string> split_commas(std::string_view text) {
  std::vector<std::string> words;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

void fail_word(std::string_view name, std::string_view word,
               const std::vector<std::string>& accepted) {
  throw Error(fmt::format("{} is '{}', but it must be one of {}{}", name, word,
                          fmt::join(accepted, ", "), did_you_mean(word, accepted)));
}

}  // namespace shardwright
