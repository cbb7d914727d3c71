// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/words.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <tuple>
#include <utility>

#include "sim/core/base/check.h"

namespace shardwright {

void fail_nameless(std::size_t enumerator) {
  SHARDWRIGHT_CHECK(false, "no name for enumerator {}", enumerator);
  std::abort();
}

namespace {

/// Of a word that is compared: a stranger's may have megabytes, and candidates are short.
constexpr std::size_t kLongestWord = 128;

// Optimal string alignment distance, O(|a| |b|); words are short.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  const std::size_t width = b.size() + 1;
  std::vector<std::size_t> cost((a.size() + 1) * width);
  const auto at = [&](std::size_t i, std::size_t j) -> std::size_t& { return cost[i * width + j]; };
  for (std::size_t i = 0; i <= a.size(); ++i) at(i, 0) = i;
  for (std::size_t j = 0; j <= b.size(); ++j) at(0, j) = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
      }
    }
  }
  return at(a.size(), b.size());
}

/// "a100-80g-4xhdr200" as {"a100", "80g", "4xhdr200"}.
std::vector<std::string> parts_of(std::string_view word) {
  std::vector<std::string> parts(1);
  for (const char c : word) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      parts.back() += c;
    } else if (!parts.back().empty()) {
      parts.emplace_back();
    }
  }
  if (parts.back().empty()) parts.pop_back();
  return parts;
}

/// How far the parts of `word` are from the parts of `candidate` that are most like them.
std::size_t distance_of_parts(std::string_view word, std::string_view candidate) {
  const std::vector<std::string> known = parts_of(candidate);
  std::size_t sum = 0;
  for (const std::string& part : parts_of(word)) {
    std::size_t least = part.size();
    for (const std::string& other : known) least = std::min(least, edit_distance(part, other));
    sum += least;
  }
  return sum;
}

/// Whether the parts of `word` stand side by side in `candidate`, as "batch" in "--micro-batch".
bool is_part_of(std::string_view word, std::string_view candidate) {
  constexpr std::size_t kShortest = 3;
  const std::vector<std::string> parts = parts_of(word);
  const std::vector<std::string> known = parts_of(candidate);
  const bool short_word = parts.size() == 1 && parts.front().size() < kShortest;
  if (parts.empty() || short_word) return false;
  return std::search(known.begin(), known.end(), parts.begin(), parts.end()) != known.end();
}

}  // namespace

std::optional<std::string> nearest(std::string_view word,
                                   const std::vector<std::string>& candidates) {
  const std::string wanted = lower_case(word.substr(0, kLongestWord));
  const std::string* best = nullptr;
  const std::string* best_part = nullptr;
  std::size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const std::string known = lower_case(candidate);
    const std::size_t distance = edit_distance(wanted, known);
    if (best == nullptr || distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
    const bool shorter = best_part == nullptr || candidate.size() < best_part->size();
    if (shorter && is_part_of(wanted, known)) best_part = &candidate;
  }
  if (best != nullptr && best_distance * 3 <= std::max(best->size(), wanted.size())) return *best;
  return best_part == nullptr ? std::nullopt : std::optional(*best_part);
}

std::vector<std::string> nearest_few(std::string_view word, std::vector<std::string> candidates,
                                     std::size_t count) {
  const std::string wanted = lower_case(word.substr(0, kLongestWord));
  const auto rank = [&wanted](const std::string& candidate) {
    const std::string known = lower_case(candidate);
    const bool related =
        known.find(wanted) != std::string::npos || wanted.find(known) != std::string::npos;
    return std::tuple(related ? 0 : 1, distance_of_parts(wanted, known),
                      edit_distance(wanted, known));
  };
  std::vector<std::pair<std::tuple<int, std::size_t, std::size_t>, std::string>> ranked;
  for (std::string& candidate : candidates) {
    const auto key = rank(candidate);
    ranked.emplace_back(key, std::move(candidate));
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> result;
  for (auto& [key, candidate] : ranked) {
    if (result.size() == count) break;
    result.push_back(std::move(candidate));
  }
  return result;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::optional<std::string> match = nearest(word, candidates);
  return match ? fmt::format(", did you mean '{}'?", *match) : std::string{};
}

Utf8Character decode_utf8(std::string_view text) {
  const auto byte = [&text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  std::size_t length = 0;
  char32_t code = 0;
  char32_t smallest = 0;
  if ((lead & 0xE0) == 0xC0) {
    length = 2, code = lead & 0x1FU, smallest = 0x80;
  } else if ((lead & 0xF0) == 0xE0) {
    length = 3, code = lead & 0x0FU, smallest = 0x800;
  } else if ((lead & 0xF8) == 0xF0) {
    length = 4, code = lead & 0x07U, smallest = 0x10000;
  }
  if (length == 0 || text.size() < length) return {};
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = (code << 6) | (byte(i) & 0x3FU);
  }
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < smallest || code > 0x10FFFF || surrogate) return {};
  return {code, length};
}

bool is_control(char32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0xAD || code == 0x61C ||
         code == 0x200B || code == 0x200E || code == 0x200F || (code >= 0x2028 && code <= 0x202E) ||
         (code >= 0x2060 && code <= 0x2069) || code == 0xFEFF ||
         (code >= 0xE0000 && code <= 0xE007F);
}

bool is_shown(std::string_view text) {
  while (!text.empty()) {
    const Utf8Character next = decode_utf8(text);
    if (next.code == kInvalidCharacter || is_control(next.code)) return false;
    text.remove_prefix(next.bytes);
  }
  return true;
}

}  // namespace shardwright
