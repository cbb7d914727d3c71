// SPDX-License-Identifier: Apache-2.0
// The settings in a Python module, as read_recipe.py beside this file tells them: Python's own
// parser reads it, in a process that runs nothing of it and is bounded in time and in what it says.
#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/child.h"
#include "cli/config/setting.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"

namespace shardwright::cli {

const char* read_recipe_script();  // read_recipe.py, put into a file by CMake

namespace settings_language {
namespace {

constexpr double kLongestReading_s = 20;  // the script bounds itself; this is for what it overlooks
constexpr std::size_t kMostAnswerBytes = std::size_t{32} << 20;

[[noreturn]] void fail_without_python(const std::string& name, const std::string& why) {
  throw Error(
      fmt::format("{}: reading a .py needs python3, or what SHARDWRIGHT_PYTHON names, of 3.9 or "
                  "newer, but {}; the same as YAML, TOML, JSON or flags is read without it",
                  name, why),
      ExitCode::kMissingDevice);
}

}  // namespace

Settings parse_python(std::string_view text, const std::string& name, const std::string& function,
                      const std::filesystem::path& folder) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(kLongestReading_s);
  const char* chosen = std::getenv("SHARDWRIGHT_PYTHON");
  const std::string python = chosen != nullptr && *chosen != '\0' ? chosen : "python3";
  std::vector<std::string> words{python, "-I", "-S", "-c", read_recipe_script()};
  words.insert(words.end(), {name, function, folder.string()});
  std::unique_ptr<Child> child;
  try {
    child = std::make_unique<Child>(std::move(words), text);
  } catch (const Error& error) {
    fail_without_python(name, error.what());
  }
  while (child->running()) {
    const double left_s = std::chrono::duration<double>(end - Clock::now()).count();
    if (left_s <= 0)
      throw Error(fmt::format("{}: took longer than {:g} s to read", name, kLongestReading_s));
    if (child->out().size() > kMostAnswerBytes)
      throw Error(fmt::format("{}: says more than {} MiB", name, kMostAnswerBytes >> 20));
    child->wait(-1, static_cast<int>(left_s * 1e3) + 1);
  }
  const int code = child->exit_code();
  if (code == static_cast<int>(ExitCode::kBadInput))
    throw Error(fmt::format("{}: {}", name, child->out()));
  if (code == static_cast<int>(ExitCode::kMissingDevice)) fail_without_python(name, child->out());
  const nlohmann::json answer = shardwright::parse_json(child->out(), false);
  if (code != 0 || !answer.is_array()) {
    std::string_view last = child->err();
    while (last.ends_with('\n')) last.remove_suffix(1);
    last.remove_prefix(last.rfind('\n') + 1);  // npos + 1 is 0
    fail_without_python(name,
                        fmt::format("{} ended with exit code {}, saying '{}'", python, code, last));
  }
  Settings settings;
  for (const auto& [key, value] : answer.get<std::vector<std::pair<std::string, std::string>>>())
    add_setting(settings, key, value, name);
  return settings;
}

}  // namespace settings_language
}  // namespace shardwright::cli
