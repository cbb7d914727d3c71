// SPDX-License-Identifier: Apache-2.0
// The part of Python that modules of settings are made of, as a tree: assignments, calls, literals,
// arithmetic, conditions, functions and imports. What is anything else stands as its text (kOther);
// nothing is run here or by who walks the tree (python_values.h).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/base/ends.h"

namespace shardwright::cli::settings_language {

struct PythonExpression;
using PythonExpressionPtr = std::unique_ptr<PythonExpression>;

struct PythonArgument {
  std::string_view name;  // "": by position; "*" and "**" spread what follows
  PythonExpressionPtr value;
};

struct PythonExpression {
  enum class Kind : std::uint8_t {
    kOther,
    kNumber,     // word: its digits, without "_"
    kString,     // word: its text
    kName,       // word
    kAttribute,  // parts[0] . word
    kCall,       // parts[0] ( arguments )
    kUnary,      // word: -, +, not
    kBinary,     // word: the operator, and comparisons; parts: both sides
    kChoice,     // parts: value, condition, otherwise
    kList,       // also tuples and sets
    kDict,       // parts: key, value, key, value; a null key spreads the value
    kSubscript   // parts: what, index
  };
  Kind kind = Kind::kOther;
  std::string_view word;
  std::string_view source;  // as it stands in the file
  std::vector<PythonExpressionPtr> parts;
  std::vector<PythonArgument> arguments;

  /// parts[0]
  const PythonExpression& inner() const { return *first_of(parts, "an expression of Python"); }
};

struct PythonStatement;
using PythonBody = std::vector<PythonStatement>;

struct PythonParameter {
  std::string_view name;  // "*args" and "**kwargs" with their stars
  PythonExpressionPtr otherwise;
};

struct PythonImport {
  std::string_view module, name, as;
};

struct PythonStatement {
  enum class Kind : std::uint8_t {
    kExpression,  // value
    kAssign,      // targets = value
    kIf,          // if value: body else: otherwise
    kReturn,      // value, may be null
    kFunction,    // def name(parameters): body
    kImport,      // imports
    kBlock,       // with, try: body runs
    kPerhaps      // for, while, except, match: body may run, value says when
  };
  Kind kind = Kind::kExpression;
  std::string_view name;
  std::vector<PythonExpressionPtr> targets;
  PythonExpressionPtr value;
  PythonBody body, otherwise;
  std::vector<PythonParameter> parameters;
  std::vector<PythonImport> imports;
};

/// A module with the text that its tree refers to.
struct PythonModule {
  std::string text;
  std::deque<std::string> words;  // of strings with escapes and numbers with "_"
  PythonBody body;
};

/// Throws Error naming the file where it is too large or nests too deeply. What is no Python at all
/// reads as statements that say nothing.
std::unique_ptr<PythonModule> parse_python_module(std::string_view text, const std::string& name);

}  // namespace shardwright::cli::settings_language
