// SPDX-License-Identifier: Apache-2.0
// TOML by toml++.
#include "cli/config/setting.h"

#ifdef SHARDWRIGHT_HAS_TOML
#include <fmt/core.h>

// Where NDEBUG is set, toml++ tells clang to assume what it asserts, and it asserts that "[{" does
// not follow in a stranger's file: its own sentence about that would be compiled away.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(expr) static_assert(true)
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

#include <algorithm>
#include <sstream>

#include "cli/config/setting_bounds.h"
#include "sim/core/error.h"
#endif

namespace shardwright::cli::settings_language {

#ifdef SHARDWRIGHT_HAS_TOML
namespace {

/// Each may open a table within a table ("a.b.c = 1"), and toml++ recurses without a bound.
constexpr std::ptrdiff_t kMostDots = 4096;

void flatten_toml(const toml::node& node, const std::string& key, const std::string& name,
                  int depth, Visits& visits, Settings& settings) {
  visits.enter(key, depth);
  if (const toml::table* table = node.as_table()) {
    for (const auto& [word, value] : *table) {
      const std::string member(word.str());
      flatten_toml(value, key.empty() ? member : key + "." + member, name, depth + 1, visits,
                   settings);
    }
  } else if (const toml::array* array = node.as_array()) {
    for (std::size_t i = 0; i < array->size(); ++i)
      flatten_toml((*array)[i], fmt::format("{}[{}]", key, i), name, depth + 1, visits, settings);
  } else if (const auto* text = node.as_string()) {
    add_setting(settings, key, text->get(), name);
  } else {
    std::ostringstream out;
    node.visit([&](const auto& value) {
      if constexpr (toml::is_value<decltype(value)>) {
        if constexpr (toml::is_boolean<decltype(value)>) {
          out << (value.get() ? "true" : "false");
        } else {
          out << value.get();
        }
      }
    });
    add_setting(settings, key, out.str(), name);
  }
}

}  // namespace

Settings parse_toml(std::string_view text, const std::string& name) {
  if (std::count(text.begin(), text.end(), '.') > kMostDots) {
    throw Error(fmt::format("{}: holds more than {} dots, each of which may open a table", name,
                            kMostDots));
  }
  Settings settings;
  Visits visits(name);
  try {
    flatten_toml(toml::parse(text, name), "", name, 0, visits, settings);
  } catch (const toml::parse_error& error) {
    throw Error(fmt::format("{}: line {}: is no TOML ({})", name, error.source().begin.line,
                            error.description()));
  }
  return settings;
}
#else
Settings parse_toml(std::string_view, const std::string&) {
  return {};
}
#endif

}  // namespace shardwright::cli::settings_language
