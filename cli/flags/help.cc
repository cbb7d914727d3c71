#include "cli/flags/help.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "cli/render/text/text.h"

namespace shardwright::cli {
namespace {

constexpr int kColumns = 100;
constexpr int kDescriptionBegins = 34;

// "  --gpus N        how many", with a long name on a line of its own.
std::string entry(const std::string& name, const std::string& description) {
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

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() {
    label("SUBCOMMAND", "VERB");
    label("OPTIONS", "options");
  }

  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    std::string name = make_option_name(option, is_positional);
    const std::size_t comma = name.find(',');
    if (comma != std::string::npos) name.insert(comma + 1, " ");
    return entry(name + make_option_opts(option), make_option_desc(option));
  }

  std::string make_subcommand(const CLI::App* verb) const override {
    return entry(verb->get_name(), verb->get_description());
  }
};

}  // namespace

// CLI11 shares formatters between an app and its sub-commands, hence the shared_ptr.
std::shared_ptr<CLI::FormatterBase> make_help_formatter() {
  return std::make_shared<HelpFormatter>();
}

}  // namespace shardwright::cli
