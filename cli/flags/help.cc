// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/help.h"

#include <fmt/core.h>

#include "cli/render/text/text.h"

namespace shardwright::cli {
namespace {

constexpr int kColumns = 100;
constexpr int kDescriptionBegins = 34;

}  // namespace

std::string help_entry(const std::string& name, const std::string& description) {
  std::string text = "  " + name;
  int column = display_width(text);
  for (const std::string& line : wrap(description, kColumns - kDescriptionBegins)) {
    if (column >= kDescriptionBegins) {
      text += '\n';
      column = 0;
    }
    text += fmt::format("{:{}}{}", "", kDescriptionBegins - column, line);
    column = kColumns;
  }
  return text + "\n";
}

}  // namespace shardwright::cli
