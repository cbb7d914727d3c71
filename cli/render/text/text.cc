// SPDX-License-Identifier: Apache-2.0
#include "cli/render/text/text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

namespace shardwright::cli {
namespace {

constexpr char32_t kInvalid = 0xFFFFFFFF;

struct Character {
  char32_t code = kInvalid;
  std::size_t bytes = 1;
};

// The character at the start of `text`, which must not be empty. Overlong forms, surrogates and
// truncated sequences are invalid and one byte long.
Character decode(std::string_view text) {
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
  if (code == kInvalid) return 1;
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
    const Character next = decode(text.substr(end));
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
    const Character next = decode(text);
    width += character_width(next.code);
    text.remove_prefix(next.bytes);
  }
  return width;
}

std::string printable(std::string_view text, bool utf8) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Character next = decode(text);
    const bool control = next.code < 0x20 || (next.code >= 0x7F && next.code < 0xA0);
    if (control) {
      result += ' ';
    } else if (next.code == kInvalid) {
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
    if (end == 0) end = decode(text).bytes;
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
