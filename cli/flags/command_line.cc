// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/command_line.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <string_view>
#include <utility>

#include "cli/render/text/terminal.h"
#include "cli/streams.h"
#include "cli/text.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/words.h"

namespace shardwright::cli {

namespace {

constexpr int kDescriptionBegins = 34;
constexpr int kMostColumns = 80;           // of help, as of manual pages
constexpr const char* kWrites = "writes";  // marks options of CLI11, which checks nothing by it

/// A name that ends in more choices than a line holds goes on after one of their bars.
std::string broken_name(std::string name, int columns) {
  const auto widest = static_cast<std::size_t>(columns);
  std::string lines = "  ";
  while (lines.size() - (lines.rfind('\n') + 1) + name.size() > widest) {
    const std::size_t bar = name.rfind('|', widest - 7);
    if (bar == std::string::npos) break;
    lines += name.substr(0, bar + 1) + "\n      ";
    name.erase(0, bar + 1);
  }
  return lines + name;
}

/// "  --gpus N        how many", with a long name on a line of its own and a long description
/// wrapped under itself.
std::string help_entry(const std::string& name, const std::string& description, int columns) {
  std::string text = broken_name(name, columns);
  int column = display_width(text.substr(text.rfind('\n') + 1));
  for (const std::string& line : wrap(description, columns - kDescriptionBegins)) {
    if (column >= kDescriptionBegins) {
      text += '\n';
      column = 0;
    }
    text += fmt::format("{:{}}{}", "", kDescriptionBegins - column, line);
    column = columns;
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
    return help_entry(name + make_option_opts(option), make_option_desc(option), columns_);
  }

  std::string make_description(const CLI::App* verb) const override {
    std::string text;
    for (const std::string& line : wrap(verb->get_description(), columns_)) text += line + "\n";
    return text;
  }

  std::string make_subcommand(const CLI::App* verb) const override {
    return help_entry(verb->get_name(), verb->get_description(), columns_);
  }

 private:
  // Beside the names of flags a description needs room.
  int columns_ = std::clamp(describe_terminal(results(), ColorMode::kNever).columns,
                            2 * kDescriptionBegins, kMostColumns);
};

Option parsed(CLI::App& app, const std::string& name,
              const std::function<void(const std::string&)>& take, const std::string& description,
              const char* type) {
  CLI::Option* option = app.add_option_function<std::string>(name, take, description);
  if (type != nullptr) option->type_name(type);
  return Option(option);
}

template <typename Value>
Option counted_option(CLI::App& app, const std::string& name, Value& value,
                      const std::string& description, CountRange range) {
  return parsed(
      app, name,
      [&value, name, range](const std::string& text) { value = parse_count(name, text, range); },
      description, "N");
}

template <typename Value>
Option measured(CLI::App& app, const std::string& name, Value& value,
                const std::string& description, RealRange range) {
  return parsed(
      app, name,
      [&value, name, range](const std::string& text) { value = parse_number(name, text, range); },
      description, "X");
}

// The verb that was given, or the root when none was.
template <typename App>
App& innermost(App& app) {
  const std::vector<CLI::App*> verbs = app.get_subcommands();
  return verbs.empty() ? app : *verbs.back();
}

bool is_written(CLI::Option& option) {
  try {
    return option.get_validator(kWrites) != nullptr;
  } catch (const CLI::OptionNotFound&) {
    return false;
  }
}

/// What is read is not written over: names of files that are there, two flags apart.
void refuse_to_write_inputs(CLI::App& verb) {
  for (CLI::Option* output :
       verb.get_options([](const CLI::Option* o) { return o->count() > 0; })) {
    if (!is_written(*output)) continue;
    const std::string& path = output->results().front();
    for (const CLI::Option* input : verb.get_options()) {
      if (input == output) continue;
      for (const std::string& other : input->results())
        if (is_same_file(path, other))
          throw Error(fmt::format("{} is {}, which {} names, too, expected a file of its own",
                                  output->get_name(), path, input->get_name()));
    }
  }
}

OptionOutline outline_of(const CLI::Option& option) {
  OptionOutline outline;
  for (const std::string& name : option.get_lnames()) outline.names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) outline.names.push_back("-" + name);
  if (outline.names.empty()) outline.names = {option.get_name()};
  if (option.get_expected_max() > 0) outline.type = option.get_type_name();
  outline.description = option.get_description();
  return outline;
}

VerbOutline outline_of(const CLI::App& app, std::string name) {
  VerbOutline outline{std::move(name), app.get_description(), {}};
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_group().empty()) outline.options.push_back(outline_of(*option));
  }
  return outline;
}

FailedParse describe(const CLI::App& app, const CLI::ParseError& error) {
  FailedParse failed;
  failed.program = app.get_name();
  const CLI::App& inner = innermost(app);
  if (&inner != &app) failed.verb = inner.get_name();
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    failed.verbs.push_back(verb->get_name());
  }
  const auto append_flags = [&failed](const CLI::App& from) {
    for (const CLI::Option* option : from.get_options()) {
      for (const std::string& name : option->get_lnames()) failed.flags.push_back("--" + name);
    }
  };
  append_flags(app);
  if (&inner != &app) append_flags(inner);
  failed.unplaced = app.remaining(true);
  failed.wrong_number_of_values = error.get_name() == "ArgumentMismatch";
  failed.something_is_missing = error.get_name() == "RequiredError";
  failed.said = error.what();
  return failed;
}

}  // namespace

const Option& Option::type_name(const std::string& name) const {
  option_->type_name(name);
  return *this;
}

const Option& Option::group(const std::string& heading) const {
  option_->group(heading);
  return *this;
}

const Option& Option::description(const std::string& text) const {
  option_->description(text);
  return *this;
}

const Option& Option::required() const {
  option_->required();
  return *this;
}

const Option& Option::optional_value() const {
  option_->expected(0, 1);
  return *this;
}

const Option& Option::repeatable() const {
  option_->take_all()->expected(1);
  return *this;
}

const Option& Option::writes() const {
  option_->check(CLI::Validator([](std::string&) { return std::string(); }, "", kWrites));
  return *this;
}

const Option& Option::shows_default() const {
  option_->capture_default_str();
  return *this;
}

Option Command::add(const std::string& name, bool& value, const std::string& description) {
  return Option(app_->add_flag(name, value, description));
}

Option Command::add(const std::string& name, std::string& value, const std::string& description) {
  return Option(app_->add_option(name, value, description));
}

Option Command::add(const std::string& name, std::optional<std::string>& value,
                    const std::string& description) {
  return Option(app_->add_option(name, value, description));
}

Option Command::add(const std::string& name, std::vector<std::string>& values,
                    const std::string& description) {
  return Option(app_->add_option(name, values, description));
}

Option Command::add(const std::string& name, std::int64_t& value, const std::string& description,
                    CountRange range) {
  return counted_option(*app_, name, value, description, range);
}

Option Command::add(const std::string& name, std::optional<std::int64_t>& value,
                    const std::string& description, CountRange range) {
  return counted_option(*app_, name, value, description, range);
}

Option Command::add(const std::string& name, double& value, const std::string& description,
                    RealRange range) {
  return measured(*app_, name, value, description, range);
}

Option Command::add(const std::string& name, std::optional<double>& value,
                    const std::string& description, RealRange range) {
  return measured(*app_, name, value, description, range);
}

Option Command::add_parsed(const std::string& name,
                           const std::function<void(const std::string&)>& take,
                           const std::string& description) {
  return parsed(*app_, name, take, description, nullptr);
}

Option Command::add_repeated(const std::string& name, std::function<void(const std::string&)> take,
                             const std::string& description) {
  const Option option(app_->add_option_function<std::vector<std::string>>(
      name,
      [take = std::move(take)](const std::vector<std::string>& words) {
        for (const std::string& word : words) take(word);
      },
      description));
  return option.repeatable();
}

Option Command::at(const std::string& name) const {
  return Option(app_->get_option(name));
}

CommandLine::CommandLine(const std::string& program, const std::string& description,
                         const std::string& footer)
    : app_(std::make_unique<CLI::App>(description, program)) {
  app_->formatter(std::make_shared<HelpFormatter>());
  app_->footer(footer);
  app_->fallthrough();
}

CommandLine::~CommandLine() = default;

void CommandLine::set_version(std::function<std::string()> text) {
  app_->set_version_flag("--version", std::move(text),
                         "Print the versions of what was compiled in and found, and exit");
}

Command CommandLine::add_verb(const std::string& name, const std::string& summary) {
  app_->require_subcommand(1);
  CLI::App* command = app_->add_subcommand(name, summary);
  command->group("Verbs");
  return Command(command);
}

std::vector<VerbOutline> CommandLine::outline() const {
  std::vector<VerbOutline> outlines{outline_of(*app_, "")};
  for (const CLI::App* verb : app_->get_subcommands([](const CLI::App*) { return true; })) {
    outlines.push_back(outline_of(*verb, verb->get_name()));
  }
  return outlines;
}

CommandLine::Parsed CommandLine::parse(int argc, const char* const* argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    std::ostringstream text;
    app_->exit(success, text, text);
    return {.answer = text.str(), .verb = {}};
  } catch (const CLI::ParseError& error) {
    throw usage_error(describe(*app_, error));
  }
  CLI::App& inner = innermost(*app_);
  refuse_to_write_inputs(inner);
  return {.answer = {}, .verb = &inner == app_.get() ? "" : inner.get_name()};
}

namespace {

std::string command_of(const FailedParse& failed) {
  return failed.verb.empty() ? failed.program : failed.program + " " + failed.verb;
}

/// Names of other programs and verbs first.
std::string hint_for_flag(const std::string& name, const std::vector<std::string>& flags) {
  struct Alias {
    std::string_view theirs, flag, value;
  };
  constexpr Alias kAliases[] = {{"--qlora", "--task", " qlora"},
                                {"--load-in-4bit", "--quantize", " nf4"},
                                {"--load-in-8bit", "--quantize", " int8"},
                                {"--batch-size", "--micro-batch", ""},
                                {"--num-gpus", "--gpus", ""},
                                {"--world-size", "--gpus", ""},
                                {"--gpus", "--ranks", ""},
                                {"--global-batch", "--grad-accum", ""}};
  for (const Alias& alias : kAliases) {
    if (name == alias.theirs && std::find(flags.begin(), flags.end(), alias.flag) != flags.end())
      return fmt::format(", did you mean '{}{}'?", alias.flag, alias.value);
  }
  return did_you_mean(name, flags);
}

std::string unexpected_word(const FailedParse& failed) {
  const std::vector<std::string>& words = failed.unplaced;
  const std::string command = command_of(failed);
  const auto no_verb = [&] {
    const std::string hint = did_you_mean(words.front(), failed.verbs);
    return fmt::format(
        "there is no verb '{}'{}", words.front(),
        hint.empty() ? fmt::format("; the verbs are {}.", fmt::join(failed.verbs, ", ")) : hint);
  };
  const bool verb_is_missing = failed.verb.empty() && !failed.verbs.empty();
  if (verb_is_missing && !words.front().starts_with('-')) return no_verb();
  const auto flag = std::find_if(words.begin(), words.end(),
                                 [](const std::string& w) { return w.starts_with('-'); });
  if (flag != words.end()) {
    const std::string name = flag->substr(0, flag->find('='));
    const std::string hint = hint_for_flag(name, failed.flags);
    return fmt::format("{} has no flag '{}'{}", command, name,
                       hint.empty() ? fmt::format("; {} --help lists them.", command) : hint);
  }
  const auto has = [&](const char* name) {
    return std::find(failed.flags.begin(), failed.flags.end(), name) != failed.flags.end();
  };
  return fmt::format(
      "{} takes no further argument, but '{}' was given{}.", command, fmt::join(words, " "),
      has("--model") && has("--cluster") ? "; a model is named by --model, a cluster by --cluster"
                                         : "");
}

// CLI11 says "--gpus: 1 required N missing" or "--gpus: At Most 1 required but received 2".
std::string argument_mismatch(const FailedParse& failed) {
  const std::string flag = failed.said.substr(0, failed.said.find(':'));
  return fmt::format("{}: {} takes one value, but {} given.", command_of(failed), flag,
                     failed.said.ends_with("missing") ? "none was" : "several were");
}

std::string sentence(const FailedParse& failed) {
  if (!failed.unplaced.empty()) return unexpected_word(failed);
  if (failed.something_is_missing && failed.verb.empty() && !failed.verbs.empty()) {
    return fmt::format("no verb was given; the verbs are {}.", fmt::join(failed.verbs, ", "));
  }
  if (failed.wrong_number_of_values) return argument_mismatch(failed);
  return fmt::format("{0}: {1}; {0} --help tells what is accepted.", command_of(failed),
                     failed.said);
}

}  // namespace

Error usage_error(const FailedParse& failed) {
  return Error(sentence(failed), ExitCode::kUsage);
}

}  // namespace shardwright::cli
