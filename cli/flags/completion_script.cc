// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/completion_script.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

namespace shardwright::cli {
namespace {

using Known = std::function<std::optional<FlagValues>(const std::string&)>;

/// "fp32|bf16" as its words; none where a part is a placeholder such as N or PATH.
std::vector<std::string> words_of_type(const std::string& type) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at <= type.size();) {
    const std::size_t end = std::min(type.find('|', at), type.size());
    const std::string part = type.substr(at, end - at);
    const bool placeholder =
        part.empty() || std::any_of(part.begin(), part.end(), [](unsigned char c) {
          return std::isupper(c) != 0 || c == '[' || c == ' ' || c == ':';
        });
    if (!placeholder) words.push_back(part);
    at = end + 1;
  }
  return words;
}

FlagValues values_of(const std::string& flag, const OptionOutline& option, const Known& known) {
  if (std::optional<FlagValues> values = known(flag)) return *values;
  const auto has = [&](const char* word) { return option.type.find(word) != std::string::npos; };
  return {words_of_type(option.type), has("FILE") || has("PATH") || has("DIR")};
}

/// Single quotes for a shell.
std::string shell_quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "'\\''" : std::string(1, c);
  return result + "'";
}

std::vector<std::string> flags_of(const VerbOutline& verb) {
  std::vector<std::string> flags;
  for (const OptionOutline& option : verb.options) {
    if (!option.positional()) flags.insert(flags.end(), option.names.begin(), option.names.end());
  }
  return flags;
}

std::vector<std::string> verb_names(const std::vector<VerbOutline>& outline) {
  std::vector<std::string> names;
  for (const VerbOutline& verb : outline) {
    if (!verb.name.empty()) names.push_back(verb.name);
  }
  return names;
}

/// The flags of all verbs that take a value, by name; verbs that share a name share its meaning.
std::map<std::string, FlagValues> values_by_flag(const std::vector<VerbOutline>& outline,
                                                 const Known& known) {
  std::map<std::string, FlagValues> values;
  for (const VerbOutline& verb : outline) {
    for (const OptionOutline& option : verb.options) {
      if (option.positional() || option.type.empty()) continue;
      for (const std::string& name : option.names)
        values.try_emplace(name, values_of(name, option, known));
    }
  }
  return values;
}

/// Bash, and what zsh does with bashcompinit.
std::string bash_script(const std::string& program, const std::vector<VerbOutline>& outline,
                        const Known& known) {
  std::string text = fmt::format(
      "# Completion of {0}; `source` this, or put it where bash-completion looks.\n"
      "_{0}() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} verb= i\n"
      "  COMPREPLY=()\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    case ${{COMP_WORDS[i]}} in {1}) verb=${{COMP_WORDS[i]}}; break ;; esac\n"
      "  done\n"
      "  case $before in\n",
      program, fmt::join(verb_names(outline), "|"));
  for (const auto& [flag, values] : values_by_flag(outline, known)) {
    std::string reply;
    if (!values.words.empty())
      reply += fmt::format("$(compgen -W {} -- \"$word\") ",
                           shell_quoted(fmt::format("{}", fmt::join(values.words, " "))));
    if (values.files) reply += "$(compgen -f -- \"$word\")";
    text += fmt::format("    {}) COMPREPLY=({}); return ;;\n", flag, reply);
  }
  text += "  esac\n  case $verb in\n";
  for (const VerbOutline& verb : outline) {
    std::vector<std::string> words = flags_of(verb);
    if (verb.name.empty()) {
      const std::vector<std::string> verbs = verb_names(outline);
      words.insert(words.begin(), verbs.begin(), verbs.end());
    }
    std::string positional;
    for (const OptionOutline& option : verb.options) {
      if (!option.positional()) continue;
      const FlagValues values = values_of(verb.name + " " + option.names.front(), option, known);
      words.insert(words.end(), values.words.begin(), values.words.end());
      if (values.files) positional = " $(compgen -f -- \"$word\")";
    }
    text += fmt::format("    {}) COMPREPLY=($(compgen -W {} -- \"$word\"){}) ;;\n",
                        verb.name.empty() ? "''" : verb.name,
                        shell_quoted(fmt::format("{}", fmt::join(words, " "))), positional);
  }
  return text + fmt::format("  esac\n}}\ncomplete -o filenames -F _{0} {0}\n", program);
}

std::string fish_script(const std::string& program, const std::vector<VerbOutline>& outline,
                        const Known& known) {
  const std::string verbs = fmt::format("{}", fmt::join(verb_names(outline), " "));
  std::string text = fmt::format(
      "# Completion of {0} for fish; put it into ~/.config/fish/completions/{0}.fish\n"
      "complete -c {0} -f\n",
      program);
  for (const VerbOutline& verb : outline) {
    const std::string when =
        verb.name.empty() ? "true" : fmt::format("__fish_seen_subcommand_from {}", verb.name);
    if (!verb.name.empty()) {
      text += fmt::format("complete -c {} -n 'not __fish_seen_subcommand_from {}' -a {} -d {}\n",
                          program, verbs, verb.name, shell_quoted(verb.summary));
    }
    for (const OptionOutline& option : verb.options) {
      const std::string subject =
          option.positional() ? verb.name + " " + option.names.front() : option.names.front();
      const FlagValues values = values_of(subject, option, known);
      const std::string words = shell_quoted(fmt::format("{}", fmt::join(values.words, " ")));
      if (option.positional()) {
        if (!values.words.empty())
          text += fmt::format("complete -c {} -n '{}' -a {}\n", program, when, words);
        continue;
      }
      for (const std::string& name : option.names) {
        if (!name.starts_with("--")) continue;
        text += fmt::format("complete -c {} -n '{}' -l {} -d {}", program, when, name.substr(2),
                            shell_quoted(option.description));
        if (!option.type.empty()) text += values.files ? " -r -F" : " -x";
        if (!values.words.empty()) text += " -a " + words;
        text += "\n";
      }
    }
  }
  return text;
}

}  // namespace

std::optional<Shell> shell_from(std::string_view word) {
  if (word == "bash") return Shell::kBash;
  if (word == "zsh") return Shell::kZsh;
  if (word == "fish") return Shell::kFish;
  return std::nullopt;
}

std::string completion_script(Shell shell, const std::string& program,
                              const std::vector<VerbOutline>& outline, const Known& known) {
  switch (shell) {
    case Shell::kBash:
      return bash_script(program, outline, known);
    case Shell::kZsh:
      return fmt::format("#compdef {0}\nautoload -Uz bashcompinit && bashcompinit\n{1}", program,
                         bash_script(program, outline, known));
    case Shell::kFish:
      break;
  }
  return fish_script(program, outline, known);
}

}  // namespace shardwright::cli
