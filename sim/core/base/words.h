// SPDX-License-Identifier: Apache-2.0
// Words: in lower case, and enumerators by the contract's, in the order of the enumeration.
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/base/check.h"

namespace shardwright {

template <typename Enum, std::size_t N>
std::string_view name_in(const std::array<std::string_view, N>& names, Enum value) {
  const auto index = static_cast<std::size_t>(value);
  SHARDWRIGHT_CHECK(index < N, "no name for enumerator {}", index);
  return names[index];
}

/// ASCII letters in lower case.
inline std::string lower_case(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

/// Nothing for a word that is none of them.
template <typename Enum, std::size_t N>
std::optional<Enum> value_in(const std::array<std::string_view, N>& names, std::string_view name) {
  const auto at = std::find(names.begin(), names.end(), name);
  if (at == names.end()) return std::nullopt;
  return static_cast<Enum>(at - names.begin());
}

// "Did you mean ...": the known word nearest to one that is not known.

/// The candidate with the smallest edit distance (insert, delete, replace, swap of neighbours) to
/// `word`; when even that one differs in more than a third of its letters, the shortest that has
/// `word` among its parts ("batch" is a part of "--micro-batch"), or nothing. Case does not count;
/// ties go to the first.
std::optional<std::string> nearest(std::string_view word,
                                   const std::vector<std::string>& candidates);

/// ", did you mean 'x'?" or "", to append to a sentence that names an unknown word.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

/// The `count` candidates most like `word`, best first: those that contain it or are contained in
/// it before the others, then by how well its parts ("a100" and "80gb" of "A100-80GB") are found
/// in them, then by edit distance. Case does not count. Unlike nearest it always answers, for
/// "unknown name; the nearest are ...".
std::vector<std::string> nearest_few(std::string_view word, std::vector<std::string> candidates,
                                     std::size_t count);

// Characters of UTF-8, and those among them that are no text.

inline constexpr char32_t kInvalidCharacter = 0xFFFFFFFF;

struct Utf8Character {
  char32_t code = kInvalidCharacter;
  std::size_t bytes = 1;
};

/// The character at the start of `text`, which must not be empty. Overlong forms, surrogates and
/// truncated sequences are invalid and one byte long.
Utf8Character decode_utf8(std::string_view text);

/// What is obeyed instead of shown: control characters, separators of lines and paragraphs, marks
/// of direction.
bool is_control(char32_t code);

/// Whether every character is valid and none is_control.
bool is_shown(std::string_view text);

}  // namespace shardwright
