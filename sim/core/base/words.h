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
#include <type_traits>
#include <vector>

namespace shardwright {

/// A bug of ours: aborts.
[[noreturn]] void fail_nameless(std::size_t enumerator);

template <typename Enum, std::size_t N>
std::string_view name_in(const std::array<std::string_view, N>& names, Enum value) {
  const auto index = static_cast<std::size_t>(value);
  if (index >= N) fail_nameless(index);
  return names[index];
}

/// Nothing for a word that is none of them.
template <typename Enum, std::size_t N>
std::optional<Enum> value_in(const std::array<std::string_view, N>& names, std::string_view name) {
  const auto at = std::find(names.begin(), names.end(), name);
  if (at == names.end()) return std::nullopt;
  return static_cast<Enum>(at - names.begin());
}

/// The words of an enumeration's values up to `last`, in its order.
template <auto last, typename... Words>
constexpr auto words_up_to(Words... words) {
  static_assert(sizeof...(words) == static_cast<std::size_t>(last) + 1);
  return std::array<std::string_view, sizeof...(words)>{words...};
}

/// The words of an enumeration, in its order.
template <typename Enum>
inline constexpr auto kWords = nullptr;
/// Beside each enumeration that has words; `last` is its last enumerator.
#define SHARDWRIGHT_WORDS(Enum, last, ...) \
  template <>                              \
  inline constexpr auto kWords<Enum> = words_up_to<Enum::last>(__VA_ARGS__)
template <typename Enum>
concept Worded = !std::is_same_v<decltype(kWords<Enum>), const std::nullptr_t>;

template <Worded Enum>
std::string_view name_of(Enum value) {
  return name_in(kWords<Enum>, value);
}
/// Nothing for a word that is none of them.
template <Worded Enum>
std::optional<Enum> from_word(std::string_view word) {
  return value_in<Enum>(kWords<Enum>, word);
}
template <Worded Enum>
std::vector<std::string> words_of() {
  return {kWords<Enum>.begin(), kWords<Enum>.end()};
}

/// ASCII letters in lower case.
inline std::string lower_case(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
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
