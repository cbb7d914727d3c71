// SPDX-License-Identifier: Apache-2.0
#include "cli/text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "sim/core/base/words.h"

namespace shardwright::cli {
namespace {

using Range = std::pair<char32_t, char32_t>;

template <std::size_t N>
bool within(char32_t code, const std::array<Range, N>& ranges) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [code](const Range& r) { return code >= r.first && code <= r.second; });
}

int character_width(char32_t code) {
  // The blocks that matter in practice, after Unicode's EastAsianWidth.txt and the Mn category.
  static constexpr std::array<Range, 5> kCombining{
      {{0x300, 0x36F}, {0x1AB0, 0x1AFF}, {0x200B, 0x200F}, {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}}};
  static constexpr std::array<Range, 12> kWide{{{0x1100, 0x115F},
                                                {0x2E80, 0x303E},
                                                {0x3041, 0x4DBF},
                                                {0x4E00, 0xA4CF},
                                                {0xA960, 0xA97C},
                                                {0xAC00, 0xD7A3},
                                                {0xF900, 0xFAFF},
                                                {0xFE30, 0xFE6F},
                                                {0xFF00, 0xFF60},
                                                {0xFFE0, 0xFFE6},
                                                {0x1F300, 0x1FAFF},
                                                {0x20000, 0x3FFFD}}};
  if (code == kInvalidCharacter) return 1;
  if (within(code, kCombining)) return 0;
  return within(code, kWide) ? 2 : 1;
}

std::string_view ascii_spelling(char32_t code) {
  switch (code) {
    case U'×':
      return "x";
    case U'±':
      return "+/-";
    case U'≤':
      return "<=";
    case U'≥':
      return ">=";
    case U'≈':
      return "~";
    case U'→':
      return "->";
    case U'←':
      return "<-";
    case U'…':
      return "...";
    case U'–':
    case U'—':
    case U'−':
    case U'─':
      return "-";
    case U'·':
    case U'•':
      return "*";
    case U'µ':
    case U'μ':
      return "u";
    case U'‘':
    case U'’':
      return "'";
    case U'“':
    case U'”':
      return "\"";
    case U'✓':
      return "yes";
    case U'✗':
      return "no";
    default:
      return "?";
  }
}

// Bytes of the longest prefix of `text` that fits into `columns`.
std::size_t prefix_bytes(std::string_view text, int columns) {
  std::size_t end = 0;
  int width = 0;
  while (end < text.size()) {
    const Utf8Character next = decode_utf8(text.substr(end));
    width += character_width(next.code);
    if (width > columns) break;
    end += next.bytes;
  }
  return end;
}

}  // namespace

int display_width(std::string_view text) {
  int width = 0;
  while (!text.empty()) {
    const Utf8Character next = decode_utf8(text);
    width += character_width(next.code);
    text.remove_prefix(next.bytes);
  }
  return width;
}

std::string printable(std::string_view text, bool utf8) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character next = decode_utf8(text);
    if (is_control(next.code)) {
      result += ' ';
    } else if (next.code == kInvalidCharacter) {
      result += '?';
    } else if (next.code < 0x80 || utf8) {
      result += text.substr(0, next.bytes);
    } else {
      result += ascii_spelling(next.code);
    }
    text.remove_prefix(next.bytes);
  }
  return result;
}

std::vector<std::string> wrap(std::string_view text, int columns) {
  std::vector<std::string> lines;
  while (display_width(text) > columns) {
    std::size_t end = prefix_bytes(text, columns);
    // A character wider than the line must still be placed somewhere.
    if (end == 0) end = decode_utf8(text).bytes;
    if (text[end] != ' ') {
      const std::size_t space = text.rfind(' ', end);
      if (space != std::string_view::npos && space > 0) end = space;
    }
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    if (text.empty()) return lines;
  }
  lines.emplace_back(text);
  return lines;
}

std::string shorten(std::string_view text, int columns, bool utf8) {
  if (display_width(text) <= columns) return std::string{text};
  const std::string_view ellipsis = utf8 ? "…" : "...";
  const int room = columns - display_width(ellipsis);
  if (room < 0) return std::string{text.substr(0, prefix_bytes(text, columns))};
  return std::string{text.substr(0, prefix_bytes(text, room))}.append(ellipsis);
}

}  // namespace shardwright::cli
