// SPDX-License-Identifier: Apache-2.0
#include "cli/config/python_words.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "sim/core/base/ends.h"
#include "sim/core/base/error.h"

namespace shardwright::cli::settings_language {
namespace {

constexpr std::size_t kMostWords = 400'000;
constexpr std::size_t kDeepestBlock = 64;
using Word = PythonWord::Kind;

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}
bool begins_name(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool in_name(char c) {
  return begins_name(c) || is_digit(c);
}

class WordReader {
 public:
  WordReader(std::string_view text, std::deque<std::string>& made, const std::string& name)
      : text_(text), made_(made), name_(name) {}

  std::vector<PythonWord> read() {
    while (at_ < text_.size()) {
      if (begins_line_ && open_ == 0) indent();
      if (at_ < text_.size()) word();
    }
    end_line();
    for (std::size_t i = 1; i < indents_.size(); ++i) add(Word::kDedent, {}, at_);
    add(Word::kEnd, {}, at_);
    return std::move(words_);
  }

 private:
  char here(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  void add(Word kind, std::string_view text, std::size_t begin) {
    if (words_.size() >= kMostWords) {
      throw Error(fmt::format("{}: holds more than {} words of Python", name_, kMostWords));
    }
    words_.push_back({kind, text, begin, at_});
  }

  PythonWord& last() { return last_of(words_, name_); }

  void end_line() {
    if (!words_.empty() && last().kind != Word::kNewline && last().kind != Word::kIndent &&
        last().kind != Word::kDedent)
      add(Word::kNewline, {}, at_);
  }

  void pass_comment() {
    while (at_ < text_.size() && here() != '\n') ++at_;
  }

  /// At the begin of a line outside of brackets: blank lines and comments have no indentation.
  void indent() {
    std::size_t column = 0;
    for (; here() == ' ' || here() == '\t'; ++at_) column += here() == '\t' ? 8 - column % 8 : 1;
    if (here() == '#') pass_comment();
    if (here() == '\n' || here() == '\r') return;
    begins_line_ = false;
    if (column > last_of(indents_, name_)) {
      if (indents_.size() > kDeepestBlock)
        throw Error(fmt::format("{}: blocks nest too deeply", name_));
      indents_.push_back(column);
      add(Word::kIndent, {}, at_);
    }
    while (column < last_of(indents_, name_)) {
      indents_.pop_back();
      add(Word::kDedent, {}, at_);
    }
  }

  void word() {
    const char c = here();
    const std::size_t begin = at_;
    if (c == '\n') {
      ++at_;
      if (open_ > 0) return;
      end_line();
      begins_line_ = true;
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f') {
      ++at_;
    } else if (c == '#') {
      pass_comment();
    } else if (c == '\\' && (here(1) == '\n' || (here(1) == '\r' && here(2) == '\n'))) {
      at_ += here(1) == '\n' ? 2 : 3;
    } else if (c == '"' || c == '\'') {
      string(begin);
    } else if (is_digit(c) || (c == '.' && is_digit(here(1)))) {
      number(begin);
    } else if (begins_name(c)) {
      while (in_name(here())) ++at_;
      // r"..", f"..": a prefix of a string.
      if (at_ - begin <= 2 && (here() == '"' || here() == '\'')) return string(begin);
      add(Word::kName, text_.substr(begin, at_ - begin), begin);
    } else {
      symbol(begin);
    }
  }

  void number(std::size_t begin) {
    std::string digits;
    while (in_name(here()) || here() == '.' ||
           ((here() == '-' || here() == '+') && (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E') &&
            is_digit(here(1)))) {
      if (here() != '_') digits += here();
      ++at_;
    }
    add(Word::kNumber, made_.emplace_back(std::move(digits)), begin);
  }

  void symbol(std::size_t begin) {
    constexpr std::array<std::string_view, 19> kLong = {
        "**=", "//=", ">>=", "<<=", "==", "!=", "<=", ">=", "->", ":=",
        "+=",  "-=",  "*=",  "/=",  "|=", "&=", "%=", "**", "//"};
    std::size_t size = 1;
    for (const std::string_view word : kLong) {
      if (size == 1 && text_.substr(at_, word.size()) == word) size = word.size();
    }
    const char c = here();
    if (c == '(' || c == '[' || c == '{') ++open_;
    if ((c == ')' || c == ']' || c == '}') && open_ > 0) --open_;
    at_ += size;
    add(Word::kSymbol, text_.substr(begin, size), begin);
  }

  void string(std::size_t begin) {
    const char quote = here();
    const std::string thrice(3, quote);
    const bool is_long = text_.substr(at_, 3) == thrice;
    at_ += is_long ? 3 : 1;
    std::string text;
    while (at_ < text_.size()) {
      if (is_long ? text_.substr(at_, 3) == thrice : here() == quote) {
        at_ += is_long ? 3 : 1;
        break;
      }
      if (!is_long && here() == '\n') break;  // unfinished
      if (here() == '\\' && at_ + 1 < text_.size()) ++at_;
      if (at_ < text_.size()) text += text_[at_++];
    }
    // Strings side by side are one.
    if (!words_.empty() && last().kind == Word::kString) {
      last().text = made_.emplace_back(std::string(last().text) + text);
      last().end = at_;
      return;
    }
    add(Word::kString, made_.emplace_back(std::move(text)), begin);
  }

  std::string_view text_;
  std::deque<std::string>& made_;
  const std::string& name_;
  std::size_t at_ = 0;
  int open_ = 0;
  bool begins_line_ = true;
  std::vector<std::size_t> indents_{0};
  std::vector<PythonWord> words_;
};

}  // namespace

std::vector<PythonWord> python_words(std::string_view text, std::deque<std::string>& made,
                                     const std::string& name) {
  return WordReader(text, made, name).read();
}

}  // namespace shardwright::cli::settings_language
