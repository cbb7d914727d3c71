// SPDX-License-Identifier: Apache-2.0
#include "cli/export/source.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/core/base/error.h"
#include "sim/core/base/words.h"

namespace shardwright::cli {
namespace {

bool is_alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool holds_only(std::string_view text, std::string_view signs) {
  return std::all_of(text.begin(), text.end(),
                     [&](char c) { return is_alphanumeric(c) || signs.find(c) != signs.npos; });
}

/// With escapes of JSON for what is not shown but for `kept`.
std::string with_escapes(std::string_view text, std::string_view kept) {
  std::string escaped;
  while (!text.empty()) {
    const Utf8Character next = decode_utf8(text);
    const std::string_view character = text.substr(0, next.bytes);
    if (next.code == kInvalidCharacter) {
      escaped += '?';
    } else if (is_control(next.code) && character != kept) {
      escaped += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(next.code));
    } else {
      escaped += character;
    }
    text.remove_prefix(next.bytes);
  }
  return escaped;
}

}  // namespace

Bare bare(std::string_view text) {
  if (text.empty() || !is_alphanumeric(text[0]) || !holds_only(text, "_-./")) {
    throw Error(
        fmt::format("'{}' cannot be written into settings, expected letters, digits, '_', '-', "
                    "'.' and '/'",
                    with_escapes(text, "")));
  }
  return Bare(std::string(text));
}

JsonSource string_literal(std::string_view text) {
  std::string marked;
  for (const char c : text) {
    if (c == '"' || c == '\\') marked += '\\';
    marked += c;
  }
  JsonSource made;
  made.text_ = "\"" + with_escapes(marked, "") + "\"";
  return made;
}

JsonSource json_source(std::string_view text) {
  if (!nlohmann::json::accept(text)) throw Error("what was to be written is no JSON");
  JsonSource made;
  made.text_ = with_escapes(text, "\n");  // between strings, where alone it can stand
  return made;
}

ShellSource shell_word(std::string_view text) {
  ShellSource made;
  if (!text.empty() && holds_only(text, "-_.,/=:")) {
    made.text_ = text;
    return made;
  }
  made.text_ = "'";
  for (const char c : with_escapes(text, "")) {
    if (c == '\'') {
      made.text_ += "'\\''";
    } else {
      made.text_ += c;
    }
  }
  made.text_ += '\'';
  return made;
}

MarkdownSource markdown(std::string_view text) {
  MarkdownSource made;
  for (const char c : with_escapes(text, "")) {
    if (std::string_view("\\`*_[]<>&|#~").find(c) != std::string_view::npos) made.text_ += '\\';
    made.text_ += c;
  }
  return made;
}

YamlSource yaml_block(std::string_view text, int columns) {
  YamlSource made;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (!is_shown(line)) {
      throw Error(fmt::format("'{}' holds a character that YAML cannot carry as it is",
                              with_escapes(line, "")));
    }
    if (!line.empty()) made.text_.append(static_cast<std::size_t>(columns), ' ');
    made.text_.append(line) += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return made;
}

AnySource AnySource::commented(const std::vector<std::string>& lines) const {
  AnySource made;
  made.language_ = language_;
  for (const std::string& line : lines) made.text_ += "# " + with_escapes(line, "") + "\n";
  made.text_ += "\n" + text_;
  return made;
}

}  // namespace shardwright::cli
