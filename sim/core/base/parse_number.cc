// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/parse_number.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <locale.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <system_error>

#include "sim/core/base/error.h"
#include "sim/core/base/words.h"

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

namespace {

/// The power of ten that a letter behind a number stands for.
std::optional<int> power_of(char letter) {
  switch (letter) {
    case 'k':
    case 'K':
      return 3;
    case 'm':
    case 'M':
      return 6;
    case 'b':
    case 'B':
    case 'g':
    case 'G':
      return 9;
    case 't':
    case 'T':
      return 12;
    default:
      return std::nullopt;
  }
}

/// "5,000,000" as "5000000"; none where commas do not part groups of three digits.
std::optional<std::string> without_commas(std::string_view text) {
  if (text.find(',') == text.npos) return std::string(text);
  const std::size_t end = std::min(text.find_first_not_of("0123456789,"), text.size());
  std::string digits;
  std::size_t in_group = 0;
  bool grouped = false;
  for (std::size_t i = 0; i <= end; ++i) {
    if (i == end || text[i] == ',') {
      if (grouped ? in_group != 3 : in_group < 1 || in_group > 3) return std::nullopt;
      grouped = true;
      in_group = 0;
    } else {
      digits += text[i];
      ++in_group;
    }
  }
  const std::string_view rest = text.substr(end);
  if (rest.find(',') != rest.npos) return std::nullopt;
  return digits + std::string(rest);
}

}  // namespace

std::optional<std::string> plain_number(std::string_view text) {
  if (text.starts_with('$')) text.remove_prefix(1);
  const std::optional<int> power = text.empty() ? std::nullopt : power_of(text.back());
  if (power) {
    text.remove_suffix(1);
    if (text.ends_with(' ')) text.remove_suffix(1);
    if (text.empty() || text.find_first_of("eE") != text.npos) return std::nullopt;
  }
  std::optional<std::string> plain = without_commas(text);
  if (plain && power) plain->append("e").append(std::to_string(*power));
  return plain;
}

double rounded(double value, int digits) {
  return parse_double(fmt::format("{:.{}g}", value, digits)).value_or(value);
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
