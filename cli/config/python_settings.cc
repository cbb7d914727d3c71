// SPDX-License-Identifier: Apache-2.0
// The settings in a Python module, as read_recipe.py beside this file tells them: Python's own
// parser reads it, in a process that runs nothing of it and is bounded in time and in what it says.
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/child.h"
#include "cli/config/setting.h"

namespace shardwright::cli {

const char* read_recipe_script();  // read_recipe.py, put into a file by CMake

namespace settings_language {

Settings parse_python(std::string_view text, const std::string& name, const std::string& function,
                      const std::filesystem::path& folder) {
  const PythonScript script{read_recipe_script(), "a .py", "the same as YAML, TOML, JSON or flags",
                            20};
  const auto pairs = ask_python(script, {name, function, folder.string()}, text, name)
                         .get<std::vector<std::pair<std::string, std::string>>>();
  Settings settings;
  for (const auto& [key, value] : pairs) add_setting(settings, key, value, name);
  return settings;
}

}  // namespace settings_language
}  // namespace shardwright::cli
