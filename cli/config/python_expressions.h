// SPDX-License-Identifier: Apache-2.0
// Reads the expressions of a Python module (python_syntax.h), by the strength of their operators.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/config/python_syntax.h"
#include "cli/config/python_words.h"

namespace shardwright::cli::settings_language {

class PythonExpressions {
 public:
  PythonExpressions(PythonModule& module, const std::string& name)
      : module_(module), name_(name), words_(python_words(module.text, module.words, name)) {}

 protected:
  const PythonWord& word(std::size_t ahead = 0) const {
    return words_[at_ + ahead < words_.size() ? at_ + ahead : words_.size() - 1];
  }
  bool is(std::string_view text, std::size_t ahead = 0) const {
    const PythonWord& w = word(ahead);
    return (w.kind == PythonWord::Kind::kSymbol || w.kind == PythonWord::Kind::kName) &&
           w.text == text;
  }
  const PythonWord& last() const { return words_[at_ == 0 ? 0 : at_ - 1]; }
  bool take(std::string_view text);
  bool ends_line() const {
    return word().kind == PythonWord::Kind::kNewline || word().kind == PythonWord::Kind::kEnd;
  }
  /// Whether the bracket around this place closes here, or the line ends.
  bool ends_bracket() const { return is(")") || is("]") || is("}") || ends_line(); }
  /// One word, or a bracket with what is in it.
  void pass_one();
  void pass() { ++at_; }

  /// What stands between a word and this place.
  std::string_view source(std::size_t from) const;
  PythonExpressionPtr make(PythonExpression::Kind kind, std::string_view text,
                           std::size_t from) const;
  /// A list without brackets, or one expression.
  PythonExpressionPtr expressions();
  PythonExpressionPtr expression();

  /// Throws Error where places nest too deeply, until it goes out of scope.
  class Deeper {
   public:
    explicit Deeper(PythonExpressions& in);
    ~Deeper() { --in_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    PythonExpressions& in_;
  };

  std::size_t at_ = 0;

 private:
  std::string_view operator_here() const;
  PythonExpressionPtr binary(int least);
  PythonExpressionPtr unary();
  PythonExpressionPtr postfix();
  PythonExpressionPtr behind(PythonExpressionPtr value, std::size_t from);
  void arguments(PythonExpression& call);
  PythonExpressionPtr atom();
  PythonExpressionPtr list(std::size_t from);
  PythonExpressionPtr braces(std::size_t from);
  void check_chain(int length) const;

  PythonModule& module_;
  const std::string& name_;
  std::vector<PythonWord> words_;
  int depth_ = 0;
};

}  // namespace shardwright::cli::settings_language
