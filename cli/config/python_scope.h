// SPDX-License-Identifier: Apache-2.0
// Where PythonEvaluator (python_values.h) keeps what it has met: modules, and names of a function.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/config/python_values.h"

namespace shardwright::cli::settings_language {

struct PythonEvaluator::Scope {
  explicit Scope(Module& of) : module(of) {}
  Module& module;
  std::map<std::string, PythonValue*, std::less<>> names;
  std::vector<PythonValue*> roots;  // objects that something is set on, whoever made them
  PythonValue* returned = nullptr;
  PythonValue* perhaps_returned = nullptr;
  std::string condition;  // not decided; empty: what stands here runs
  bool ended = false;
};

struct PythonEvaluator::Module {
  std::filesystem::path folder;
  std::unique_ptr<PythonModule> tree;
  std::map<std::string_view, const PythonStatement*> functions;
  std::map<std::string_view, PythonImport> imports;  // by the name it has here
  std::unique_ptr<Scope> scope;
};

struct PythonEvaluator::Called {
  std::string callee;  // "dataclasses.replace"
  std::vector<PythonValue*> positional;
  std::vector<std::pair<std::string, PythonValue*>> named;
};

}  // namespace shardwright::cli::settings_language
