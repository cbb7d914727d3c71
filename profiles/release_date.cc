// SPDX-License-Identifier: Apache-2.0
#include "profiles/release_date.h"

namespace shardwright::profiles {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::size_t digits_from(std::string_view text, std::size_t begin) {
  std::size_t end = begin;
  while (end < text.size() && is_digit(text[end])) ++end;
  return end - begin;
}

int number(std::string_view digits) {
  int value = 0;
  for (const char c : digits) value = 10 * value + (c - '0');
  return value;
}

/// The number of two digits behind a divider, or none.
std::vector<int> part_behind(std::string_view text, std::size_t at) {
  if (at >= text.size() || (text[at] != '-' && text[at] != '.')) return {};
  if (digits_from(text, at + 1) != 2) return {};
  return {number(text.substr(at + 1, 2))};
}

}  // namespace

std::vector<int> release_date(std::string_view release) {
  for (std::size_t i = 0; i < release.size(); ++i) {
    if (!is_digit(release[i])) continue;
    const std::size_t digits = digits_from(release, i);
    const int first = digits <= 4 ? number(release.substr(i, digits)) : 0;
    std::vector<int> next = part_behind(release, i + digits);
    const bool short_year = digits == 2 && first >= 20 && first < 70 && !next.empty();
    if ((digits == 4 && first >= 2000 && first < 2100) || short_year) {
      std::vector<int> date{short_year ? 2000 + first : first};
      for (std::size_t at = i + digits; !next.empty() && date.size() < 3;
           next = part_behind(release, at)) {
        date.push_back(next.front());
        at += 3;
      }
      return date;
    }
    i += digits - 1;
    // A version of another kind ("2.11"): what stands behind its dots is no year.
    while (i + 2 < release.size() && release[i + 1] == '.' && is_digit(release[i + 2])) {
      i += 1 + digits_from(release, i + 2);
    }
  }
  return {};
}

}  // namespace shardwright::profiles
