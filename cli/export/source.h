// SPDX-License-Identifier: Apache-2.0
// Text of one language that a machine will read: Python, YAML, TOML, shell.
//
// It is made of literals, numbers, text of the same language and what string_literal(),
// shell_word(), markdown() and bare() return. A std::string does not compile: what strangers named
// has to pass one of these.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace shardwright::cli {

enum class Script : std::uint8_t { kJson, kYaml, kToml, kPython, kShell, kMarkdown };

/// Letters, digits and "_", "-", "." and "/", which begin with a letter or digit: a word of each
/// language.
class Bare {
 public:
  const std::string& text() const { return text_; }

 private:
  friend Bare bare(std::string_view text);
  explicit Bare(std::string text) : text_(std::move(text)) {}
  std::string text_;
};
/// Throws Error where it is none.
Bare bare(std::string_view text);

template <Script kLanguage>
class Source {
  template <typename Part>
  static auto part(const Part& value) {
    static_assert(!std::is_same_v<Part, bool>, "each language has its own words for these");
    if constexpr (std::is_arithmetic_v<Part>) {
      return value;
    } else {
      return Source(value).text_;
    }
  }

 public:
  Source() = default;
  /// Of this program's own.
  Source(const char* literal) : text_(literal) {}   // NOLINT(google-explicit-constructor)
  Source(const Bare& word) : text_(word.text()) {}  // NOLINT(google-explicit-constructor)
  /// Strings, numbers and arrays of JSON are those of YAML, TOML and Python, too.
  template <Script kOther>
  requires(kOther == Script::kJson && (kLanguage == Script::kYaml || kLanguage == Script::kToml ||
                                       kLanguage == Script::kPython))
      Source(const Source<kOther>& json)  // NOLINT(google-explicit-constructor)
      : text_(json.text()) {}

  /// As fmt::format, of numbers and of what such a Source can be made of.
  template <typename... Parts>
  static Source format(
      fmt::format_string<decltype(Source::part(std::declval<const Parts&>()))...> form,
      const Parts&... parts) {
    Source made;
    made.text_ = fmt::format(form, part(parts)...);
    return made;
  }

  Source& operator+=(const Source& more) {
    text_ += more.text_;
    return *this;
  }
  friend Source operator+(Source first, const Source& second) { return first += second; }
  const std::string& text() const { return text_; }

 private:
  friend Source<Script::kJson> string_literal(std::string_view text);
  friend Source<Script::kJson> json_source(std::string_view text);
  friend Source<Script::kShell> shell_word(std::string_view text);
  friend Source<Script::kMarkdown> markdown(std::string_view text);
  friend Source<Script::kYaml> yaml_block(std::string_view text, int columns);

  std::string text_;
};

using JsonSource = Source<Script::kJson>;
using YamlSource = Source<Script::kYaml>;
using TomlSource = Source<Script::kToml>;
using PythonSource = Source<Script::kPython>;
using ShellSource = Source<Script::kShell>;
using MarkdownSource = Source<Script::kMarkdown>;

/// In double quotes, with escapes that JSON, YAML, TOML and Python share for all that is not shown
/// (words.h); bytes that are no UTF-8 become '?'.
JsonSource string_literal(std::string_view text);
/// A whole document. Throws Error where it is none.
JsonSource json_source(std::string_view text);
/// One word, in single quotes where it needs them.
ShellSource shell_word(std::string_view text);
/// In a paragraph, with its marks escaped.
MarkdownSource markdown(std::string_view text);
/// The lines of another file behind "key: |", so far to the right. Throws Error where one holds
/// what YAML cannot carry.
YamlSource yaml_block(std::string_view text, int columns);

/// Text of any of these languages that is ready to be written.
class AnySource {
 public:
  AnySource() = default;
  template <Script kLanguage>
  AnySource(Source<kLanguage> source)  // NOLINT(google-explicit-constructor)
      : language_(kLanguage), text_(source.text()) {}

  /// With `lines` as comments above it, which JSON does not have.
  AnySource commented(const std::vector<std::string>& lines) const;

  Script language() const { return language_; }
  const std::string& text() const { return text_; }

 private:
  Script language_ = Script::kJson;
  std::string text_;
};

}  // namespace shardwright::cli
