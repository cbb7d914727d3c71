// SPDX-License-Identifier: Apache-2.0
#include "sim/core/hf/literals.h"

#include <array>
#include <cstddef>
#include <string_view>

namespace shardwright::hf {
namespace {

constexpr std::array<std::string_view, 3> kLiterals = {"-Infinity", "Infinity", "NaN"};

/// The literal that `text` begins with, or "".
std::string_view literal_at(std::string_view text) {
  for (const std::string_view literal : kLiterals) {
    if (text.starts_with(literal)) return literal;
  }
  return {};
}

}  // namespace

std::string without_python_literals(std::string_view text) {
  std::string json;
  json.reserve(text.size());
  bool quoted = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted && c == '\\' && at + 1 < text.size()) {
      json += text.substr(at++, 2);
      continue;
    }
    if (c == '"') quoted = !quoted;
    const std::string_view literal = quoted ? std::string_view() : literal_at(text.substr(at));
    if (literal.empty()) {
      json += c;
    } else {
      json += "null";
      at += literal.size() - 1;
    }
  }
  return json;
}

}  // namespace shardwright::hf
