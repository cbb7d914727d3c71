// SPDX-License-Identifier: Apache-2.0
#include "cli/config/python_expressions.h"

#include <fmt/core.h>

#include <utility>

#include "sim/core/base/error.h"

namespace shardwright::cli::settings_language {
namespace {

constexpr int kDeepestExpression = 200;
constexpr int kLongestChain = 500;  // a.b.c, 1 + 1 + 1: trees as deep as they are long
using Word = PythonWord::Kind;
using Tree = PythonExpression::Kind;

/// From the loosest to the tightest; "not" stands between "and" and the comparisons.
constexpr int kNotBinds = 3, kComparisonBinds = 4, kUnaryBinds = 11, kPowerBinds = 12;

int binds(std::string_view word) {
  if (word == "or") return 1;
  if (word == "and") return 2;
  for (const char* one : {"==", "!=", "<", ">", "<=", ">=", "in", "is", "not in", "is not"}) {
    if (word == one) return kComparisonBinds;
  }
  if (word == "|") return 5;
  if (word == "^") return 6;
  if (word == "&") return 7;
  if (word == "+" || word == "-") return 9;
  if (word == "*" || word == "/" || word == "//" || word == "%" || word == "@") return 10;
  if (word == "**") return kPowerBinds;
  return 0;
}

}  // namespace

PythonExpressions::Deeper::Deeper(PythonExpressions& in) : in_(in) {
  if (++in_.depth_ > kDeepestExpression)
    throw Error(fmt::format("{}: calls nest too deeply", in_.name_));
}

void PythonExpressions::check_chain(int length) const {
  if (length > kLongestChain)
    throw Error(fmt::format("{}: holds an expression of more than {} parts", name_, kLongestChain));
}

bool PythonExpressions::take(std::string_view text) {
  if (!is(text)) return false;
  ++at_;
  return true;
}

void PythonExpressions::pass_one() {
  int deeper = 0;
  do {
    if (is("(") || is("[") || is("{")) ++deeper;
    if (is(")") || is("]") || is("}")) --deeper;
    ++at_;
  } while (deeper > 0 && word().kind != Word::kEnd);
}

std::string_view PythonExpressions::source(std::size_t from) const {
  if (from >= at_ || at_ > words_.size()) return {};
  const std::size_t begin = words_[from].begin, end = words_[at_ - 1].end;
  return std::string_view(module_.text).substr(begin, end - begin);
}

PythonExpressionPtr PythonExpressions::make(Tree kind, std::string_view text,
                                            std::size_t from) const {
  auto made = std::make_unique<PythonExpression>();
  made->kind = kind;
  made->word = text;
  made->source = source(from);
  return made;
}

PythonExpressionPtr PythonExpressions::expressions() {
  const std::size_t from = at_;
  PythonExpressionPtr first = expression();
  if (!is(",")) return first;
  auto list = make(Tree::kList, {}, from);
  list->parts.push_back(std::move(first));
  while (take(",")) {
    if (ends_bracket() || is("=")) break;
    list->parts.push_back(expression());
  }
  list->source = source(from);
  return list;
}

PythonExpressionPtr PythonExpressions::expression() {
  const Deeper deeper(*this);
  const std::size_t from = at_;
  PythonExpressionPtr value;
  if (is("lambda")) {
    while (!ends_bracket() && !is(",")) pass_one();
    value = make(Tree::kOther, {}, from);
  } else {
    value = binary(1);
    if (take("if")) {
      auto choice = make(Tree::kChoice, {}, from);
      choice->parts.push_back(std::move(value));
      choice->parts.push_back(binary(1));
      choice->parts.push_back(take("else") ? expression() : make(Tree::kOther, {}, at_));
      value = std::move(choice);
    }
  }
  if (is(":=") || is("async") || is("for")) {
    // A comprehension, or what is not known here: its text.
    while (!ends_bracket()) pass_one();
    value = make(Tree::kOther, {}, from);
  }
  value->source = source(from);
  return value;
}

std::string_view PythonExpressions::operator_here() const {
  if (is("not") && is("in", 1)) return "not in";
  if (is("is") && is("not", 1)) return "is not";
  if (word().kind != Word::kSymbol && word().kind != Word::kName) return {};
  return word().text;
}

PythonExpressionPtr PythonExpressions::binary(int least) {
  const std::size_t from = at_;
  PythonExpressionPtr left = unary();
  for (int length = 0;; ++length) {
    check_chain(length);
    const std::string_view name = operator_here();
    const int how = binds(name);
    if (how == 0 || how < least) return left;
    at_ += name == "not in" || name == "is not" ? 2 : 1;
    const Deeper deeper(*this);
    PythonExpressionPtr right = binary(how == kPowerBinds ? how : how + 1);
    auto both = make(Tree::kBinary, name, from);
    both->parts.push_back(std::move(left));
    both->parts.push_back(std::move(right));
    left = std::move(both);
  }
}

PythonExpressionPtr PythonExpressions::unary() {
  const std::size_t from = at_;
  take("await");
  if (is("-") || is("+") || is("~") || is("not")) {
    const std::string_view name = word().text;
    ++at_;
    const Deeper deeper(*this);
    PythonExpressionPtr of = binary(name == "not" ? kNotBinds : kUnaryBinds);
    auto made = make(Tree::kUnary, name, from);
    made->parts.push_back(std::move(of));
    return made;
  }
  return postfix();
}

PythonExpressionPtr PythonExpressions::postfix() {
  const std::size_t from = at_;
  PythonExpressionPtr value = atom();
  for (int length = 0; is("(") || is("[") || (is(".") && word(1).kind == Word::kName); ++length) {
    check_chain(length);
    value = behind(std::move(value), from);
  }
  return value;
}

PythonExpressionPtr PythonExpressions::behind(PythonExpressionPtr value, std::size_t from) {
  PythonExpressionPtr more;
  if (is(".")) {
    more = make(Tree::kAttribute, word(1).text, from);
    more->parts.push_back(std::move(value));
    at_ += 2;
  } else if (take("(")) {
    more = make(Tree::kCall, {}, from);
    more->parts.push_back(std::move(value));
    arguments(*more);
  } else {
    take("[");
    more = make(Tree::kSubscript, {}, from);
    more->parts.push_back(std::move(value));
    PythonExpressionPtr index = is("]") ? make(Tree::kOther, {}, at_) : expressions();
    if (!is("]")) index = make(Tree::kOther, {}, at_);  // a slice
    while (!ends_bracket()) pass_one();
    take("]");
    more->parts.push_back(std::move(index));
  }
  more->source = source(from);
  return more;
}

void PythonExpressions::arguments(PythonExpression& call) {
  while (!is(")") && !ends_line()) {
    PythonArgument argument;
    if (is("*") || is("**")) {
      argument.name = word().text;
      ++at_;
    } else if (word().kind == Word::kName && is("=", 1)) {
      argument.name = word().text;
      at_ += 2;
    }
    argument.value = expression();
    call.arguments.push_back(std::move(argument));
    if (take(",")) continue;
    while (!ends_bracket() && !is(",")) pass_one();
    if (!take(",") && !is(")")) break;
  }
  take(")");
}

PythonExpressionPtr PythonExpressions::atom() {
  const std::size_t from = at_;
  const PythonWord& w = word();
  if (w.kind == Word::kNumber || w.kind == Word::kString || w.kind == Word::kName) {
    ++at_;
    return make(w.kind == Word::kNumber   ? Tree::kNumber
                : w.kind == Word::kString ? Tree::kString
                                          : Tree::kName,
                w.text, from);
  }
  if (take("(")) {
    if (take(")")) return make(Tree::kList, {}, from);
    PythonExpressionPtr inner = expressions();
    while (!ends_bracket()) pass_one();
    take(")");
    inner->source = source(from);
    return inner;
  }
  if (take("[")) return list(from);
  if (take("{")) return braces(from);
  if (!ends_bracket()) ++at_;
  return make(Tree::kOther, {}, from);
}

PythonExpressionPtr PythonExpressions::list(std::size_t from) {
  auto made = make(Tree::kList, {}, from);
  while (!ends_bracket()) {
    take("*");
    made->parts.push_back(expression());
    if (take(",")) continue;
    if (!is("]")) made->kind = Tree::kOther;
    while (!ends_bracket()) pass_one();
  }
  take("]");
  made->source = source(from);
  return made;
}

PythonExpressionPtr PythonExpressions::braces(std::size_t from) {
  auto made = make(Tree::kDict, {}, from);
  while (!ends_bracket()) {
    if (take("**")) {
      made->parts.push_back(nullptr);
      made->parts.push_back(expression());
    } else {
      made->parts.push_back(expression());
      if (take(":")) {
        made->parts.push_back(expression());
      } else {
        made->kind = Tree::kList;
      }
    }
    if (take(",")) continue;
    while (!ends_bracket()) pass_one();
  }
  take("}");
  // A set that something is spread in is not followed.
  for (const auto& part : made->parts) {
    if (made->kind == Tree::kList && !part) made->kind = Tree::kOther;
  }
  made->source = source(from);
  return made;
}

}  // namespace shardwright::cli::settings_language
