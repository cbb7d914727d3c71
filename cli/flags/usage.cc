#include "cli/flags/usage.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "sim/core/nearest.h"

namespace shardwright::cli {
namespace {

// The verb that was given, or the root when none was.
const CLI::App& innermost(const CLI::App& app) {
  const std::vector<CLI::App*> verbs = app.get_subcommands();
  return verbs.empty() ? app : *verbs.back();
}

std::string command_line(const CLI::App& app) {
  const CLI::App& verb = innermost(app);
  return &verb == &app ? app.get_name() : app.get_name() + " " + verb.get_name();
}

std::vector<std::string> verb_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(verb->get_name());
  }
  return names;
}

std::vector<std::string> flag_names(const CLI::App& app) {
  std::vector<std::string> names;
  const auto append = [&names](const CLI::App& from) {
    for (const CLI::Option* option : from.get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  };
  append(app);
  if (&innermost(app) != &app) append(innermost(app));
  return names;
}

std::string unexpected_word(const CLI::App& app, const std::vector<std::string>& words) {
  const auto flag = std::find_if(words.begin(), words.end(),
                                 [](const std::string& w) { return w.starts_with('-'); });
  if (flag != words.end()) {
    const std::string name = flag->substr(0, flag->find('='));
    const std::string hint = did_you_mean(name, flag_names(app));
    return fmt::format(
        "{} has no flag '{}'{}", command_line(app), name,
        hint.empty() ? fmt::format("; {} --help lists them.", command_line(app)) : hint);
  }
  if (&innermost(app) == &app) {
    const std::string hint = did_you_mean(words.front(), verb_names(app));
    return fmt::format(
        "there is no verb '{}'{}", words.front(),
        hint.empty() ? fmt::format("; the verbs are {}.", fmt::join(verb_names(app), ", ")) : hint);
  }
  return fmt::format("{} takes no further argument, but '{}' was given.", command_line(app),
                     fmt::join(words, " "));
}

// CLI11 says "--gpus: 1 required N missing" or "--gpus: At Most 1 required but received 2".
std::string argument_mismatch(const CLI::App& app, const std::string& said) {
  const std::string flag = said.substr(0, said.find(':'));
  return fmt::format("{}: {} takes one value, but {} given.", command_line(app), flag,
                     said.ends_with("missing") ? "none was" : "several were");
}

}  // namespace

Error usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> words = app.remaining(true);
  if (!words.empty()) return Error(unexpected_word(app, words), ExitCode::kUsage);
  if (&innermost(app) == &app && error.get_name() == "RequiredError") {
    return Error(
        fmt::format("no verb was given; the verbs are {}.", fmt::join(verb_names(app), ", ")),
        ExitCode::kUsage);
  }
  if (error.get_name() == "ArgumentMismatch") {
    return Error(argument_mismatch(app, error.what()), ExitCode::kUsage);
  }
  return Error(fmt::format("{}: {}; {} --help tells what is accepted.", command_line(app),
                           error.what(), command_line(app)),
               ExitCode::kUsage);
}

}  // namespace shardwright::cli
