// SPDX-License-Identifier: Apache-2.0
// What stands on the command line: flags bound to variables, verbs, --help and --version.
//
// This is all of CLI11 that the rest of the program sees: its header takes longer to compile than
// most files that declare a flag, so it is included by command_line.cc alone. A verb binds each
// flag to one of its variables; the type of the variable decides how the value is read. Numbers are
// read strictly (sim/core/base/parse_number.h), because CLI11 reads "010" as eight, lets
// 99999999999999999999 saturate and accepts nan.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace shardwright::cli {

/// A flag that was declared, to say more about it. Cheap to copy; lives as long as its command.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  /// What stands behind the flag in --help: "FILE".
  const Option& type_name(const std::string& name) const;
  /// The heading in --help that it stands under; an empty one hides it.
  const Option& group(const std::string& heading) const;
  const Option& description(const std::string& text) const;
  const Option& required() const;
  /// May be given several times, each time with one value.
  const Option& repeatable() const;
  /// May stand alone: then its value is an empty word.
  const Option& optional_value() const;
  /// Names a file that is written: no other flag of the line may name the same one.
  const Option& writes() const;
  /// --help shows the variable's present value.
  const Option& shows_default() const;

 private:
  CLI::Option* option_;
};

/// The flags and positional arguments of the program or of one verb. Variables keep their values
/// when the flag is not given, and must stay where they are until the line was parsed. Names
/// without dashes are positional.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  Option add(const std::string& name, bool& value, const std::string& description);
  Option add(const std::string& name, std::string& value, const std::string& description);
  Option add(const std::string& name, std::optional<std::string>& value,
             const std::string& description);
  /// One word or several behind one flag.
  Option add(const std::string& name, std::vector<std::string>& values,
             const std::string& description);
  Option add(const std::string& name, std::int64_t& value, const std::string& description,
             CountRange range = {});
  Option add(const std::string& name, std::optional<std::int64_t>& value,
             const std::string& description, CountRange range = {});
  Option add(const std::string& name, double& value, const std::string& description,
             RealRange range = {});
  Option add(const std::string& name, std::optional<double>& value, const std::string& description,
             RealRange range = {});
  /// Named as a FILE in --help.
  template <typename Value>
  Option add_file(const std::string& name, Value& value, const std::string& description) {
    return add(name, value, description).type_name("FILE");
  }
  /// `take` gets the word, and throws Error for one that it refuses.
  Option add_parsed(const std::string& name, const std::function<void(const std::string&)>& take,
                    const std::string& description);
  /// Repeatable; `take` gets the words one after the other.
  Option add_repeated(const std::string& name, std::function<void(const std::string&)> take,
                      const std::string& description);
  /// A flag that was declared before, by its name.
  Option at(const std::string& name) const;

 private:
  CLI::App* app_;
};

/// A flag or positional argument as it was declared.
struct OptionOutline {
  std::vector<std::string> names;  // "--gpus"; a positional argument has one without dashes
  std::string type;                // "N", "fp32|bf16"; empty: it takes no value
  std::string description;
  bool positional() const { return !names.front().starts_with('-'); }
};

struct VerbOutline {
  std::string name;  // empty: the program itself
  std::string summary;
  std::vector<OptionOutline> options;  // without those that --help hides
};

/// The whole line of a program.
class CommandLine {
 public:
  CommandLine(const std::string& program, const std::string& description,
              const std::string& footer = {});
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// Flags of the program itself; they may also stand behind a verb.
  Command root() { return Command(app_.get()); }
  /// --version prints this.
  void set_version(std::function<std::string()> text);
  /// From the first verb on, a line must name one.
  Command add_verb(const std::string& name, const std::string& summary);

  /// The program itself, then its verbs, as they were declared.
  std::vector<VerbOutline> outline() const;

  struct Parsed {
    std::optional<std::string>
        answer;        // to --help or --version: nothing is left to do but print it
    std::string verb;  // empty: the program has none
  };
  /// Sets the variables. Throws Error: one sentence, with the code of wrong usage or, for a number
  /// out of range, of bad input.
  Parsed parse(int argc, const char* const* argv);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace shardwright::cli

// Turns what the parser refused into the project's errors: one sentence, the flag and value named,
// exit code 2.

namespace shardwright::cli {

/// What is known of a line after it could not be parsed.
struct FailedParse {
  std::string program;
  std::string verb;                   // that was given; empty: none
  std::vector<std::string> verbs;     // that there are
  std::vector<std::string> flags;     // "--gpus": of the program and of the verb
  std::vector<std::string> unplaced;  // words that mean nothing there
  bool wrong_number_of_values = false;
  bool something_is_missing = false;
  std::string said;  // by the parser
};

Error usage_error(const FailedParse& failed);

}  // namespace shardwright::cli
