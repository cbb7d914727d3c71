// SPDX-License-Identifier: Apache-2.0
#include "cli/config/python_values.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "cli/config/python_scope.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::cli::settings_language {
namespace {

constexpr std::size_t kMostSteps = 300'000;
constexpr std::size_t kMostBytes = std::size_t{64} << 20;
constexpr std::size_t kLongestText = 200;
constexpr std::int64_t kLargestFactor = std::int64_t{1} << 31;
using Is = PythonValue::Kind;
using Tree = PythonExpression::Kind;

bool is_number(const PythonValue& value) {
  return value.kind == Is::kInteger || value.kind == Is::kFloat || value.kind == Is::kBool;
}

/// "a if cond else b" on one line.
std::string one_line(std::string_view source) {
  std::string text;
  for (const char c : source.substr(0, kLongestText)) {
    const bool space = c == ' ' || c == '\n' || c == '\t' || c == '\r';
    if (!space) {
      text += c;
    } else if (!text.empty() && !text.ends_with(' ')) {
      text += ' ';
    }
  }
  return text;
}

}  // namespace

PythonValue* PythonValue::field(std::string_view name) const {
  for (const auto& [key, value] : fields) {
    if (key == name) return value;
  }
  return nullptr;
}

void PythonValue::set(std::string_view name, PythonValue* value) {
  std::erase_if(perhaps, [&](const Perhaps& one) { return one.key == name; });
  for (auto& [key, old] : fields) {
    if (key == name) {
      old = value;
      return;
    }
  }
  fields.emplace_back(name, value);
}

std::optional<bool> python_truth(const PythonValue& value) {
  switch (value.kind) {
    case Is::kNone:
      return false;
    case Is::kBool:
    case Is::kInteger:
    case Is::kFloat:
      return value.number != 0;
    case Is::kString:
      return !value.text.empty();
    case Is::kList:
      return !value.items.empty();
    case Is::kUnknown:
    case Is::kObject:
      break;
  }
  return std::nullopt;
}

PythonEvaluator::PythonEvaluator(const std::string& name, std::filesystem::path folder)
    : name_(name), folder_(std::move(folder)) {}
PythonEvaluator::~PythonEvaluator() = default;

void PythonEvaluator::step() {
  if (++steps_ > kMostSteps || bytes_ > kMostBytes) {
    throw Error(fmt::format("{}: its functions call each other too often to be followed", name_));
  }
}

void PythonEvaluator::set_on(PythonValue& object, std::string_view key, PythonValue* value) {
  steps_ += object.fields.size() / 64;  // which are looked through
  step();
  bytes_ += key.size() + sizeof(object.fields[0]);
  object.set(key, value);
}

PythonValue* PythonEvaluator::make(Is kind, std::string text) {
  step();
  bytes_ += text.size();
  PythonValue& value = values_.emplace_back();
  value.kind = kind;
  value.text = std::move(text);
  return &value;
}

PythonValue* PythonEvaluator::make_integer(std::int64_t integer) {
  PythonValue* value = make(Is::kInteger, fmt::format("{}", integer));
  value->integer = integer;
  value->number = static_cast<double>(integer);
  return value;
}

PythonValue* PythonEvaluator::make_float(double number) {
  PythonValue* value = make(Is::kFloat, fmt::format("{}", number));
  value->number = number;
  return value;
}

PythonValue* PythonEvaluator::make_bool(bool truth) {
  PythonValue* value = make(Is::kBool, truth ? "true" : "false");
  value->integer = truth ? 1 : 0;
  value->number = truth ? 1 : 0;
  return value;
}

PythonValue* PythonEvaluator::unknown(const PythonExpression& of) {
  return make(Is::kUnknown, one_line(of.source));
}

PythonValue* PythonEvaluator::copy_of(const PythonValue& value) {
  PythonValue* copy = make(value.kind, value.text);
  bytes_ += value.fields.size() * sizeof(value.fields[0]);
  *copy = value;
  return copy;
}

PythonValue* PythonEvaluator::value_of(const PythonExpression& of, Scope& scope) {
  step();
  switch (of.kind) {
    case Tree::kNumber:
      return number(of);
    case Tree::kString:
      return make(Is::kString, std::string(of.word));
    case Tree::kName:
      return name(of, scope);
    case Tree::kAttribute: {
      const PythonValue* on = value_of(of.inner(), scope);
      if (on->kind == Is::kObject) {
        if (PythonValue* field = on->field(of.word)) return field;
      }
      return unknown(of);
    }
    case Tree::kCall:
      return call(of, scope);
    case Tree::kUnary:
      return unary(of, scope);
    case Tree::kBinary:
      return of.word == "and" || of.word == "or" ? logic(of, scope) : binary(of, scope);
    case Tree::kChoice: {
      const std::optional<bool> holds = python_truth(*value_of(*of.parts[1], scope));
      return holds ? value_of(*of.parts[*holds ? 0 : 2], scope) : unknown(of);
    }
    case Tree::kList: {
      PythonValue* list = make(Is::kList, one_line(of.source));
      for (const auto& part : of.parts) list->items.push_back(value_of(*part, scope));
      if (list->items.size() <= 4) {  // as the key of a map: "4,1"
        list->text.clear();
        for (const PythonValue* item : list->items) {
          if (list->text.size() > kLongestText) break;
          list->text += (list->text.empty() ? "" : ",") + item->text;
        }
      }
      return list;
    }
    case Tree::kDict:
      return dict(of, scope);
    case Tree::kSubscript:
      return subscript(of, scope);
    case Tree::kOther:
      break;
  }
  return unknown(of);
}

PythonValue* PythonEvaluator::number(const PythonExpression& of) {
  if (const auto whole = parse_int64(of.word)) return make_integer(*whole);
  const auto number = parse_double(of.word);
  if (!number) return unknown(of);  // "1j"
  PythonValue* value = make(Is::kFloat, std::string(of.word));
  value->number = *number;
  return value;
}

PythonValue* PythonEvaluator::name(const PythonExpression& of, Scope& scope) {
  if (of.word == "True" || of.word == "False") return make_bool(of.word == "True");
  if (of.word == "None") return make(Is::kNone, "null");
  if (of.word == "__name__") return make(Is::kString, "__main__");
  if (const auto at = scope.names.find(of.word); at != scope.names.end()) return at->second;
  if (scope.module.scope) {
    const auto& outside = scope.module.scope->names;
    if (const auto at = outside.find(of.word); at != outside.end()) return at->second;
  }
  // A constant of another module.
  if (const auto at = scope.module.imports.find(of.word); at != scope.module.imports.end()) {
    if (Module* other = find_module(scope.module, at->second.module)) {
      const auto& names = other->scope->names;
      if (const auto there = names.find(at->second.name); there != names.end())
        return there->second;
    }
  }
  return unknown(of);
}

PythonValue* PythonEvaluator::unary(const PythonExpression& of, Scope& scope) {
  const PythonValue* value = value_of(of.inner(), scope);
  if (of.word == "not") {
    const std::optional<bool> holds = python_truth(*value);
    return holds ? make_bool(!*holds) : unknown(of);
  }
  if (of.word == "~" || !is_number(*value)) return unknown(of);
  if (of.word == "+") return copy_of(*value);
  if (value->kind != Is::kFloat) return make_integer(-value->integer);
  PythonValue* negative = make(Is::kFloat, "-" + value->text);
  negative->number = -value->number;
  return negative;
}

PythonValue* PythonEvaluator::logic(const PythonExpression& of, Scope& scope) {
  PythonValue* left = value_of(*of.parts[0], scope);
  const std::optional<bool> holds = python_truth(*left);
  const bool ends_with = of.word == "or";  // what decides it
  if (holds) return *holds == ends_with ? left : value_of(*of.parts[1], scope);
  const std::optional<bool> right = python_truth(*value_of(*of.parts[1], scope));
  return right && *right == ends_with ? make_bool(ends_with) : unknown(of);
}

PythonValue* PythonEvaluator::binary(const PythonExpression& of, Scope& scope) {
  const PythonValue& left = *value_of(*of.parts[0], scope);
  const PythonValue& right = *value_of(*of.parts[1], scope);
  const std::string_view word = of.word;
  if (word == "==" || word == "!=" || word == "<" || word == ">" || word == "<=" || word == ">=" ||
      word == "is" || word == "is not" || word == "in" || word == "not in") {
    return compare(of, left, right);
  }
  return arithmetic(of, left, right);
}

namespace {

/// Whether they are the same; none where that is not known.
std::optional<bool> equal(const PythonValue& a, const PythonValue& b) {
  if (a.kind == Is::kUnknown || b.kind == Is::kUnknown) return std::nullopt;
  if (is_number(a) && is_number(b)) return a.number == b.number;
  if (a.kind != b.kind) return false;
  if (a.kind == Is::kNone) return true;
  if (a.kind == Is::kString) return a.text == b.text;
  if (&a == &b) return true;
  if (a.kind != Is::kList) return std::nullopt;
  if (a.items.size() != b.items.size()) return false;
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    if (a.items[i]->kind == Is::kList || b.items[i]->kind == Is::kList) return std::nullopt;
    const std::optional<bool> same = equal(*a.items[i], *b.items[i]);
    if (!same || !*same) return same;
  }
  return true;
}

}  // namespace

PythonValue* PythonEvaluator::compare(const PythonExpression& of, const PythonValue& left,
                                      const PythonValue& right) {
  const std::string_view word = of.word;
  if (word == "==" || word == "!=" || word == "is" || word == "is not") {
    const std::optional<bool> same = equal(left, right);
    return same ? make_bool(*same == (word == "==" || word == "is")) : unknown(of);
  }
  if (word == "in" || word == "not in") {
    if (left.kind == Is::kString && right.kind == Is::kString)
      return make_bool((right.text.find(left.text) != std::string::npos) == (word == "in"));
    if (right.kind != Is::kList) return unknown(of);
    bool sure = true;
    for (const PythonValue* item : right.items) {
      const std::optional<bool> same = equal(left, *item);
      if (same && *same) return make_bool(word == "in");
      sure = sure && same;
    }
    return sure ? make_bool(word != "in") : unknown(of);
  }
  if (!is_number(left) || !is_number(right)) return unknown(of);
  return make_bool(word == "<"    ? left.number < right.number
                   : word == ">"  ? left.number > right.number
                   : word == "<=" ? left.number <= right.number
                                  : left.number >= right.number);
}

PythonValue* PythonEvaluator::arithmetic(const PythonExpression& of, const PythonValue& left,
                                         const PythonValue& right) {
  if (of.word == "+" && left.kind == Is::kString && right.kind == Is::kString &&
      left.text.size() + right.text.size() <= kLongestText)
    return make(Is::kString, left.text + right.text);
  if (!is_number(left) || !is_number(right)) return unknown(of);
  const bool whole = left.kind != Is::kFloat && right.kind != Is::kFloat;
  if (whole) {
    const std::int64_t a = left.integer, b = right.integer;
    // Larger ones are no settings, and could overflow.
    if (std::abs(left.number) > static_cast<double>(kLargestFactor) ||
        std::abs(right.number) > static_cast<double>(kLargestFactor)) {
      return unknown(of);
    }
    if (of.word == "+") return make_integer(a + b);
    if (of.word == "-") return make_integer(a - b);
    if (of.word == "*") return make_integer(a * b);
    if (of.word == "//" && a >= 0 && b > 0) return make_integer(a / b);
    if (of.word == "%" && a >= 0 && b > 0) return make_integer(a % b);
    if (of.word == "**" && a == 2 && b >= 0 && b <= 31) return make_integer(std::int64_t{1} << b);
  }
  if (of.word == "/" && right.number != 0) return make_float(left.number / right.number);
  if (whole) return unknown(of);
  if (of.word == "+") return make_float(left.number + right.number);
  if (of.word == "-") return make_float(left.number - right.number);
  if (of.word == "*") return make_float(left.number * right.number);
  return unknown(of);
}

PythonValue* PythonEvaluator::dict(const PythonExpression& of, Scope& scope) {
  PythonValue* made = make(Is::kObject);
  for (std::size_t i = 0; i + 1 < of.parts.size(); i += 2) {
    PythonValue* value = value_of(*of.parts[i + 1], scope);
    if (!of.parts[i]) {
      for (const auto& [key, one] : value->fields) set_on(*made, key, one);
      continue;
    }
    set_on(*made, value_of(*of.parts[i], scope)->text, value);
  }
  return made;
}

PythonValue* PythonEvaluator::subscript(const PythonExpression& of, Scope& scope) {
  const PythonValue* on = value_of(*of.parts[0], scope);
  const PythonValue* index = value_of(*of.parts[1], scope);
  if (on->kind == Is::kList && index->kind == Is::kInteger && index->integer >= 0 &&
      static_cast<std::size_t>(index->integer) < on->items.size()) {
    return on->items[static_cast<std::size_t>(index->integer)];
  }
  if (on->kind == Is::kObject && index->kind != Is::kUnknown) {
    if (PythonValue* field = on->field(index->text)) return field;
  }
  return unknown(of);
}

}  // namespace shardwright::cli::settings_language
