// SPDX-License-Identifier: Apache-2.0
// Statements, calls and modules of PythonEvaluator.
#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <system_error>

#include "cli/config/python_scope.h"
#include "cli/config/python_values.h"
#include "cli/config/setting.h"
#include "sim/core/base/ends.h"
#include "sim/core/base/error.h"
#include "sim/core/base/read_file.h"
#include "sim/core/base/words.h"

namespace shardwright::cli::settings_language {
namespace {

constexpr int kDeepestFollowed = 16;
constexpr std::size_t kMostModules = 24;
constexpr int kMostFolders = 10;
using Is = PythonValue::Kind;
using Tree = PythonExpression::Kind;
using Does = PythonStatement::Kind;
namespace fs = std::filesystem;

/// "a.b.c" of names alone, else "".
std::string dotted_name(const PythonExpression& of) {
  if (of.kind == Tree::kName) return std::string(of.word);
  if (of.kind != Tree::kAttribute) return "";
  const std::string before = dotted_name(of.inner());
  return before.empty() ? "" : before + "." + std::string(of.word);
}

std::string last_part(const std::string& dotted) {
  return dotted.substr(dotted.rfind('.') + 1);  // npos + 1 is 0
}

bool is_class(std::string_view name) {
  return !name.empty() && std::isupper(static_cast<unsigned char>(name[0])) != 0;
}

/// What hands on the settings that it is given: copies, casts, "to_graph_trainer_config(base)".
bool hands_on(const std::string& callee) {
  const std::string name = last_part(callee);
  return name == "deepcopy" || name == "copy" || name == "replace" || name == "get_peft_model" ||
         (name.starts_with("to_") && name.ends_with("config"));
}

}  // namespace

// --- calls ---

PythonEvaluator::Called PythonEvaluator::called_with(const PythonExpression& of, Scope& scope) {
  Called called;
  called.callee = dotted_name(of.inner());
  for (const PythonArgument& argument : of.arguments) {
    PythonValue* value = value_of(*argument.value, scope);
    if (argument.name == "**") {
      for (const auto& [key, one] : value->fields) called.named.emplace_back(key, one);
    } else if (argument.name == "*") {
      called.positional.insert(called.positional.end(), value->items.begin(), value->items.end());
    } else if (argument.name.empty()) {
      called.positional.push_back(value);
    } else {
      called.named.emplace_back(argument.name, value);
    }
  }
  return called;
}

PythonValue* PythonEvaluator::call(const PythonExpression& of, Scope& scope) {
  Called called = called_with(of, scope);
  if (called.callee.empty()) return method(of, scope);
  if (PythonValue* known = known_function(of, called)) return known;
  const PythonExpression& what = of.inner();
  if (what.kind == Tree::kAttribute) {
    const std::string owner = called.callee.substr(0, called.callee.find('.'));
    if (scope.names.contains(owner)) return method(of, scope);
  }
  // A registry says what it holds by its argument.
  const bool given_settings = !called.positional.empty() && hands_on(called.callee) &&
                              first_of(called.positional, "a call")->kind == Is::kObject;
  if (what.kind == Tree::kName && !given_settings && !scope.names.contains(what.word) &&
      what.word.find("registry") == std::string_view::npos) {
    Module* in = &scope.module;
    if (const PythonStatement* function = find_function(in, what.word, 0)) {
      if (PythonValue* value = follow(*in, *function, called, nullptr)) return value;
    }
  }
  PythonValue* value = opaque(called.callee, called);
  if (given_settings) return value;
  if (const auto at = scope.module.imports.find(what.word);
      what.kind == Tree::kName && at != scope.module.imports.end() && !is_class(at->second.name)) {
    value->begins = fmt::format("{}.{}", at->second.module, at->second.name);
  }
  return value;
}

PythonValue* PythonEvaluator::opaque(const std::string& callee, const Called& called) {
  std::string first;
  if (!called.positional.empty()) {
    const PythonValue& one = *first_of(called.positional, "a call");
    if (one.kind == Is::kString || one.kind == Is::kInteger) first = one.text;
  }
  PythonValue* value = make(Is::kObject, fmt::format("{}({})", callee, first));
  if (hands_on(callee) && !called.positional.empty() &&
      first_of(called.positional, "a call")->kind == Is::kObject) {
    const PythonValue& base = *first_of(called.positional, "a call");
    value->fields = base.fields;
    value->perhaps = base.perhaps;
    value->begins = base.begins;
    bytes_ += base.fields.size() * sizeof(base.fields[0]);
  }
  for (const auto& [key, one] : called.named) set_on(*value, key, one);
  return value;
}

PythonValue* PythonEvaluator::known_function(const PythonExpression& of, const Called& called) {
  const std::string& name = called.callee;
  const auto& given = called.positional;
  if (name == "dict" || name == "SimpleNamespace") {
    PythonValue* made = opaque(name, called);
    made->text.clear();
    return made;
  }
  if (name == "isinstance" && given.size() == 2) {
    const std::string& type = given[1]->text;
    const Is kind = given[0]->kind;
    if (kind == Is::kUnknown || kind == Is::kObject) return unknown(of);
    if (type == "str") return make_bool(kind == Is::kString);
    if (type == "int") return make_bool(kind == Is::kInteger || kind == Is::kBool);
    // What is plain is of no class of theirs.
    return given[1]->kind == Is::kUnknown && is_class(type) ? make_bool(false) : unknown(of);
  }
  if ((name == "cast" || name == "typing.cast") && given.size() == 2) return given[1];
  if ((name == "int" || name == "float" || name == "str" || name == "bool") && given.size() == 1 &&
      given[0]->kind != Is::kObject && given[0]->kind != Is::kList) {
    return given[0];
  }
  if ((name == "os.environ.get" || name == "os.getenv") && given.size() == 2) return given[1];
  if (name == "len" && given.size() == 1 && given[0]->kind == Is::kList)
    return make_integer(static_cast<std::int64_t>(given[0]->items.size()));
  if ((name == "max" || name == "min") && given.size() == 2 && given[0]->kind == Is::kInteger &&
      given[1]->kind == Is::kInteger) {
    return make_integer(name == "max" ? std::max(given[0]->integer, given[1]->integer)
                                      : std::min(given[0]->integer, given[1]->integer));
  }
  return nullptr;
}

/// What is called on a value: of strings and maps what is known, else the text of it.
PythonValue* PythonEvaluator::method(const PythonExpression& of, Scope& scope) {
  const PythonExpression& what = of.inner();
  const Called called = called_with(of, scope);
  if (what.kind != Tree::kAttribute) {
    PythonValue* on = value_of(what, scope);
    return opaque(on->text.empty() ? "call" : on->text, called);
  }
  PythonValue* on = value_of(what.inner(), scope);
  if (on->kind == Is::kString) {
    if (what.word == "lower") return make(Is::kString, lower_case(on->text));
    if (what.word == "strip") return on;
  }
  if (what.word == "copy" && (on->kind == Is::kList || on->kind == Is::kObject))
    return copy_of(*on);
  if (what.word == "get" && on->kind == Is::kObject && !called.positional.empty() &&
      called.positional[0]->kind != Is::kUnknown) {
    if (PythonValue* field = on->field(called.positional[0]->text)) return field;
    if (on->text.empty() && called.positional.size() == 2) return called.positional[1];
  }
  if (what.word == "update" && on->kind == Is::kObject && scope.condition.empty()) {
    for (const PythonValue* more : called.positional) {
      for (const auto& [key, one] : more->fields) set_on(*on, key, one);
    }
    for (const auto& [key, one] : called.named) set_on(*on, key, one);
  }
  return opaque(fmt::format("{}.{}", on->text, what.word), called);
}

void PythonEvaluator::bind(Module& in, const PythonStatement& function, const Called& called,
                           Scope& scope) {
  std::size_t next = 0;
  PythonValue* rest = nullptr;
  for (const PythonParameter& parameter : function.parameters) {
    if (parameter.name.starts_with("**")) {
      rest = make(Is::kObject);
      scope.names[std::string(parameter.name.substr(2))] = rest;
    } else if (parameter.name.starts_with("*")) {
      next = called.positional.size();
    } else if (next < called.positional.size()) {
      scope.names[std::string(parameter.name)] = called.positional[next++];
    } else if (parameter.otherwise) {
      Scope outside(in);
      scope.names[std::string(parameter.name)] = value_of(*parameter.otherwise, outside);
    }
  }
  for (const auto& [key, value] : called.named) {
    const bool has =
        std::any_of(function.parameters.begin(), function.parameters.end(),
                    [&name = key](const PythonParameter& one) { return one.name == name; });
    if (has) scope.names[key] = value;
    if (!has && rest != nullptr) set_on(*rest, key, value);
  }
}

/// What it returns; none where that says nothing. `roots`: what it sets things on besides.
PythonValue* PythonEvaluator::follow(Module& in, const PythonStatement& function,
                                     const Called& called, std::vector<PythonValue*>* roots) {
  if (depth_ >= kDeepestFollowed) return nullptr;
  ++depth_;
  Scope scope(in);
  bind(in, function, called, scope);
  run(function.body, scope);
  --depth_;
  PythonValue* returned = scope.returned != nullptr ? scope.returned : scope.perhaps_returned;
  if (roots != nullptr) *roots = scope.roots;
  if (returned == nullptr) return nullptr;
  if (returned->kind == Is::kObject && !called.callee.empty() &&
      (returned->text.empty() ||
       std::isupper(static_cast<unsigned char>(returned->text[0])) != 0)) {
    // As a setting it is called what made it: "bf16_mixed()".
    std::string first;
    if (!called.positional.empty() && called.positional[0]->kind == Is::kString)
      first = called.positional[0]->text;
    returned->text = fmt::format("{}({}) -> {}", called.callee, first, returned->text);
  }
  return returned;
}

// --- modules ---

const PythonStatement* PythonEvaluator::find_function(Module*& in, std::string_view name,
                                                      int depth) {
  if (const auto at = in->functions.find(name); at != in->functions.end()) return at->second;
  const auto imported = in->imports.find(name);
  if (imported == in->imports.end() || depth > 3) return nullptr;
  Module* other = find_module(*in, imported->second.module);
  if (other == nullptr) return nullptr;
  in = other;
  return find_function(in, imported->second.name, depth + 1);
}

PythonEvaluator::Module* PythonEvaluator::find_module(const Module& from, std::string_view dotted) {
  if (from.folder.empty() || dotted.empty()) return nullptr;
  fs::path folder = from.folder;
  const bool relative = dotted.starts_with('.');
  if (relative) dotted.remove_prefix(1);
  for (; relative && dotted.starts_with('.'); dotted.remove_prefix(1))
    folder = folder.parent_path();
  std::string path(dotted);
  std::replace(path.begin(), path.end(), '.', '/');
  // Names have no "..": what is found lies below a folder that the file lies in.
  for (int up = 0; up < (relative ? 1 : kMostFolders); ++up) {
    for (const fs::path& file : {path.empty() ? folder / "__init__.py" : folder / (path + ".py"),
                                 folder / path / "__init__.py"}) {
      if (Module* module = load(file)) return module;
    }
    if (!folder.has_parent_path() || folder == folder.parent_path()) break;
    folder = folder.parent_path();
  }
  return nullptr;
}

PythonEvaluator::Module* PythonEvaluator::load(const fs::path& path) {
  const std::string key = path.lexically_normal().string();
  if (const auto at = modules_.find(key); at != modules_.end()) return at->second.get();
  std::error_code ignored;
  if (modules_.size() >= kMostModules || !fs::is_regular_file(path, ignored)) return nullptr;
  auto module = std::make_unique<Module>();
  module->folder = path.parent_path();
  module->tree = parse_python_module(read_file(path, kMostSettingsBytes), key);
  Module& placed = *module;
  modules_.emplace(key, std::move(module));
  placed.scope = std::make_unique<Scope>(placed);
  run(placed.tree->body, *placed.scope);
  return &placed;
}

std::vector<std::string> PythonEvaluator::read(std::string_view text) {
  auto module = std::make_unique<Module>();
  module->folder = folder_;
  module->tree = parse_python_module(text, name_);
  main_ = module.get();
  modules_.emplace("", std::move(module));
  main_->scope = std::make_unique<Scope>(*main_);
  run(main_->tree->body, *main_->scope);
  std::vector<std::string> functions;
  for (const PythonStatement& statement : main_->tree->body) {
    if (statement.kind == Does::kFunction) functions.emplace_back(statement.name);
  }
  return functions;
}

std::vector<const PythonValue*> PythonEvaluator::call(const std::string& function) {
  Module* in = main_;
  const PythonStatement* found = find_function(in, function, 0);
  if (found == nullptr) return {};
  std::vector<PythonValue*> roots;
  const PythonValue* returned = follow(*in, *found, {}, &roots);
  if (returned != nullptr && returned->kind == Is::kObject &&
      !(returned->fields.empty() && returned->begins.empty())) {
    return {returned};
  }
  return {roots.begin(), roots.end()};
}

std::vector<const PythonValue*> PythonEvaluator::outside(bool all) const {
  if (!all) return {main_->scope->roots.begin(), main_->scope->roots.end()};
  std::vector<const PythonValue*> values;
  for (const auto& [name, value] : main_->scope->names) {
    if (value->kind == Is::kObject) values.push_back(value);
  }
  return values;
}

std::vector<PythonImport> PythonEvaluator::imports() const {
  std::vector<PythonImport> all;
  for (const auto& [name, one] : main_->imports) all.push_back(one);
  return all;
}

// --- statements ---

void PythonEvaluator::run(const PythonBody& body, Scope& scope) {
  for (const PythonStatement& statement : body) {
    if (scope.ended) return;
    run(statement, scope);
  }
}

void PythonEvaluator::run(const PythonStatement& statement, Scope& scope) {
  step();
  const auto run_perhaps = [&](const PythonBody& body, std::string_view condition) {
    const std::string before = scope.condition;
    if (before.empty()) scope.condition = std::string(condition.substr(0, 80));
    run(body, scope);
    scope.condition = before;
    scope.ended = false;
  };
  switch (statement.kind) {
    case Does::kExpression:
      if (statement.value) static_cast<void>(value_of(*statement.value, scope));
      break;
    case Does::kAssign: {
      PythonValue* value = value_of(*statement.value, scope);
      for (const auto& target : statement.targets) assign(*target, value, scope);
      break;
    }
    case Does::kIf: {
      const std::optional<bool> holds = python_truth(*value_of(*statement.value, scope));
      if (holds) {
        run(*holds ? statement.body : statement.otherwise, scope);
      } else {
        run_perhaps(statement.body, statement.value->source);
        run_perhaps(statement.otherwise, fmt::format("not {}", statement.value->source));
      }
      break;
    }
    case Does::kReturn: {
      PythonValue* value =
          statement.value ? value_of(*statement.value, scope) : make(Is::kNone, "null");
      (scope.condition.empty() ? scope.returned : scope.perhaps_returned) = value;
      scope.ended = true;
      break;
    }
    case Does::kFunction:
      scope.module.functions.emplace(statement.name, &statement);
      break;
    case Does::kImport:
      for (const PythonImport& one : statement.imports)
        scope.module.imports.insert_or_assign(one.as, one);
      break;
    case Does::kBlock:
      run(statement.body, scope);
      break;
    case Does::kPerhaps:
      run_perhaps(statement.body, statement.value->source);
      break;
  }
}

void PythonEvaluator::assign(const PythonExpression& target, PythonValue* value, Scope& scope) {
  if (target.kind == Tree::kName) {
    PythonValue*& place = scope.names[std::string(target.word)];
    if (scope.condition.empty() || place == nullptr) {
      place = value;
    } else if (place->kind != Is::kObject) {
      place = make(Is::kUnknown, fmt::format("{} if {}", value->text, scope.condition));
    }
  } else if (target.kind == Tree::kList) {
    for (std::size_t i = 0; i < target.parts.size(); ++i) {
      // "model, tokenizer = from_pretrained(...)": the first is what the call makes.
      PythonValue* item = value->kind == Is::kList && i < value->items.size() ? value->items[i]
                          : value->kind == Is::kObject && i == 0
                              ? value
                              : make(Is::kUnknown, fmt::format("{}[{}]", value->text, i));
      assign(*target.parts[i], item, scope);
    }
  } else if (target.kind == Tree::kAttribute || target.kind == Tree::kSubscript) {
    assign_attribute(target, value, scope);
  }
}

void PythonEvaluator::assign_attribute(const PythonExpression& target, PythonValue* value,
                                       Scope& scope) {
  const std::string key = target.kind == Tree::kAttribute ? std::string(target.word)
                                                          : value_of(*target.parts[1], scope)->text;
  PythonValue* object = object_at(target.inner(), scope);
  if (object == nullptr) return;
  if (scope.condition.empty()) {
    set_on(*object, key, value);
  } else {
    step();
    object->perhaps.push_back({key, value->text, scope.condition});
  }
}

/// The object that an attribute is set on: one is made where there is none yet, which keeps the
/// text of what stood there ("bf16_mixed").
PythonValue* PythonEvaluator::object_at(const PythonExpression& of, Scope& scope) {
  if (of.kind == Tree::kName) {
    const auto at = scope.names.find(of.word);
    PythonValue* object = at == scope.names.end() ? nullptr : at->second;
    if (object == nullptr || object->kind != Is::kObject) {
      if (object == nullptr && scope.module.scope && scope.module.scope.get() != &scope &&
          scope.module.scope->names.contains(of.word)) {
        return nullptr;  // a value of the whole module, which others see as well
      }
      object = make(Is::kObject);
      scope.names[std::string(of.word)] = object;
    }
    if (std::find(scope.roots.begin(), scope.roots.end(), object) == scope.roots.end())
      scope.roots.push_back(object);
    return object;
  }
  if (of.kind != Tree::kAttribute) return nullptr;
  PythonValue* outer = object_at(of.inner(), scope);
  if (outer == nullptr) return nullptr;
  PythonValue* inner = outer->field(of.word);
  if (inner == nullptr || inner->kind != Is::kObject) {
    const bool says = inner != nullptr && inner->kind != Is::kNone;
    inner = make(Is::kObject, says ? inner->text : std::string());
    set_on(*outer, of.word, inner);
  }
  return inner;
}

}  // namespace shardwright::cli::settings_language
