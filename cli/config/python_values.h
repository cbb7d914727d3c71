// SPDX-License-Identifier: Apache-2.0
// What a Python module of settings comes to, as far as it can be told without running it.
//
// Constants are folded, functions of the module (and of modules beside it, where the file lies in
// its package) are followed with the arguments that they are called with, and conditions that
// constants decide are decided. What depends on anything else stays unknown and keeps its text: a
// reader that needs it refuses it by that text. What is set under a condition that is not decided
// is kept apart (PythonValue::perhaps).
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/config/python_syntax.h"

namespace shardwright::cli::settings_language {

struct PythonValue {
  enum class Kind : std::uint8_t {
    kUnknown,
    kNone,
    kBool,
    kInteger,
    kFloat,
    kString,
    kList,
    kObject
  };
  struct Perhaps {
    std::string key, value, condition;
  };
  Kind kind = Kind::kUnknown;
  std::int64_t integer = 0;  // also of kBool
  double number = 0;         // also of kInteger
  /// As a setting says it: digits, a string's text, "FullAC.Config()" of a call, an unknown's
  /// source.
  std::string text;
  std::vector<PythonValue*> items;
  std::vector<std::pair<std::string, PythonValue*>> fields;  // what a call is given, what is set
  std::vector<Perhaps> perhaps;
  std::string begins;  // "module.function" that made it, which was not at hand

  PythonValue* field(std::string_view name) const;
  void set(std::string_view name, PythonValue* value);
};

class PythonEvaluator {
 public:
  /// `folder` holds the file, or is empty: then no other module is looked for.
  PythonEvaluator(const std::string& name, std::filesystem::path folder);
  ~PythonEvaluator();

  /// The functions that a module defines, in its order.
  std::vector<std::string> read(std::string_view text);
  /// What calling one comes to: what it returns, else what it sets things on.
  std::vector<const PythonValue*> call(const std::string& function);
  /// What stands outside of functions: what things are set on there, or all that has a name.
  std::vector<const PythonValue*> outside(bool all) const;
  /// "from MODULE import NAME" of the module itself.
  std::vector<PythonImport> imports() const;

 private:
  struct Module;
  struct Scope;
  struct Called;

  PythonValue* make(PythonValue::Kind kind, std::string text = {});
  PythonValue* make_integer(std::int64_t value);
  PythonValue* make_float(double value);
  PythonValue* make_bool(bool value);
  PythonValue* unknown(const PythonExpression& of);
  PythonValue* copy_of(const PythonValue& value);
  void set_on(PythonValue& object, std::string_view key, PythonValue* value);
  void step();

  // Expressions (python_values.cc).
  PythonValue* value_of(const PythonExpression& of, Scope& scope);
  PythonValue* name(const PythonExpression& of, Scope& scope);
  PythonValue* number(const PythonExpression& of);
  PythonValue* unary(const PythonExpression& of, Scope& scope);
  PythonValue* binary(const PythonExpression& of, Scope& scope);
  PythonValue* logic(const PythonExpression& of, Scope& scope);
  PythonValue* compare(const PythonExpression& of, const PythonValue& left,
                       const PythonValue& right);
  PythonValue* arithmetic(const PythonExpression& of, const PythonValue& left,
                          const PythonValue& right);
  PythonValue* subscript(const PythonExpression& of, Scope& scope);
  PythonValue* dict(const PythonExpression& of, Scope& scope);

  // Calls (python_calls.cc).
  PythonValue* call(const PythonExpression& of, Scope& scope);
  Called called_with(const PythonExpression& of, Scope& scope);
  PythonValue* known_function(const PythonExpression& of, const Called& called);
  PythonValue* method(const PythonExpression& of, Scope& scope);
  void bind(Module& in, const PythonStatement& function, const Called& called, Scope& scope);
  PythonValue* follow(Module& in, const PythonStatement& function, const Called& called,
                      std::vector<PythonValue*>* roots);
  PythonValue* opaque(const std::string& callee, const Called& called);
  const PythonStatement* find_function(Module*& in, std::string_view name, int depth);
  Module* find_module(const Module& from, std::string_view dotted);
  Module* load(const std::filesystem::path& path);

  // Statements (python_calls.cc).
  void run(const PythonBody& body, Scope& scope);
  void run(const PythonStatement& statement, Scope& scope);
  void assign(const PythonExpression& target, PythonValue* value, Scope& scope);
  void assign_attribute(const PythonExpression& target, PythonValue* value, Scope& scope);
  PythonValue* object_at(const PythonExpression& of, Scope& scope);

  const std::string& name_;
  std::filesystem::path folder_;
  std::deque<PythonValue> values_;
  std::map<std::string, std::unique_ptr<Module>> modules_;  // by path
  Module* main_ = nullptr;
  std::size_t steps_ = 0, bytes_ = 0;
  int depth_ = 0;
};

/// Whether a condition holds; none where that is not known.
std::optional<bool> python_truth(const PythonValue& value);

}  // namespace shardwright::cli::settings_language
