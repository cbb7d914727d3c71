// SPDX-License-Identifier: Apache-2.0
// Characters of UTF-8, and those among them that are no text.
#pragma once

#include <cstddef>
#include <string_view>

namespace shardwright {

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
