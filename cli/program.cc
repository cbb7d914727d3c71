// SPDX-License-Identifier: Apache-2.0
#include "cli/program.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/build_info.h"
#include "cli/flags/command_line.h"
#include "cli/mcp/server.h"
#include "cli/streams.h"
#include "cli/text.h"
#include "cli/verbs/verbs.h"
#include "profiles/data_file.h"
#include "sim/core/base/read_file.h"

namespace shardwright::cli {
namespace {

constexpr const char* kFooter =
    "Results go to stdout, everything else to stderr.\n`shardwright VERB --help` explains a "
    "verb.\n\n"
    "Exit codes:\n"
    "  0  done\n"
    "  1  failed while running\n"
    "  2  wrong usage\n"
    "  3  bad input file or value\n"
    "  4  infeasible: nothing fits\n"
    "  5  device or library missing\n"
    "  6  comparison outside tolerance\n"
    "  75 stopped from outside: run saved what it had, and --resume goes on";

/// Our version, and those of what this was built with.
std::string version_text() {
  const BuildInfo build = build_info();
  std::string text =
      fmt::format("shardwright {}\n{}, {}{}", build.version, build.compiler, build.build_type,
                  build.sanitizers.empty() ? "" : ", sanitizers: ");
  text += build.sanitizers + "\n";
  for (const LibraryVersion& library : build.libraries) {
    text +=
        fmt::format("{:<14} {}\n", library.name,
                    library.version.empty() ? "not found when this was built" : library.version);
  }
  text += fmt::format("{:<14}", "executors");
  for (const std::string& executor : build.executors) text += " " + executor;
  if (build.executors.empty()) text += " none";
  return text;
}

/// The command as a user would type it again in a shell.
std::string command_line(int argc, const char* const* argv) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+,./:%@^";
  std::string line = "shardwright";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
      line += " " + word;
      continue;
    }
    line += " '";
    for (const char letter : word) line += letter == '\'' ? "'\\''" : std::string(1, letter);
    line += "'";
  }
  return line;
}

/// Long words, which are keys and values of a stranger's file, by how they begin.
std::string shorten_words(std::string_view sentence) {
  constexpr std::size_t kMostWordBytes = 400, kShownBytes = 100;
  std::string text;
  while (!sentence.empty()) {
    const std::size_t end = std::min(sentence.find_first_of(" \n"), sentence.size());
    const bool whole = end <= kMostWordBytes;
    text += sentence.substr(0, whole ? end : kShownBytes);
    if (!whole) text += "...";
    sentence.remove_prefix(end);
    const std::size_t gap = std::min(sentence.find_first_not_of(" \n"), sentence.size());
    text += sentence.substr(0, gap);
    sentence.remove_prefix(gap);
  }
  return text;
}

int fail(ColorMode color, std::string_view whole, ExitCode code) {
  const Terminal terminal = describe_terminal(messages(), color);
  // Names and keys of a stranger's file are shown, not obeyed, and not by the megabyte; a closed
  // stderr is not worth a crash.
  constexpr std::size_t kMostSentenceBytes = 16384;
  const std::string shortened = shorten_words(whole);
  const bool cut = shortened.size() > kMostSentenceBytes;
  std::string_view sentence = std::string_view(shortened).substr(0, kMostSentenceBytes);
  std::string text = paint(terminal, Style::kRed, "error:") + " ";
  for (std::size_t end = 0; end != std::string_view::npos; sentence.remove_prefix(end + 1)) {
    end = sentence.find('\n');
    text += printable(sentence.substr(0, end), terminal.utf8) + "\n";
    if (end == std::string_view::npos) break;
  }
  if (cut) text += "(cut here)\n";
  std::fputs(text.c_str(), messages());
  return static_cast<int>(code);
}

/// What the system said of a path that nobody looked at before: too long, in a loop of links.
std::string path_sentence(const std::filesystem::filesystem_error& error) {
  constexpr std::size_t kMostShown = 200;
  std::string path = error.path1().string();
  if (path.size() > kMostShown) path = path.substr(0, kMostShown) + "...";
  return fmt::format("{}: {}, expected the path of a file or folder", path, error.code().message());
}

ExitCode path_code(const std::filesystem::filesystem_error& error) {
  const bool device = error.code() == std::errc::no_space_on_device ||
                      error.code() == std::errc::io_error ||
                      error.code() == std::errc::read_only_file_system;
  return device ? ExitCode::kFailed : ExitCode::kBadInput;
}

// A full disk shows only when the buffer is written out, and must not look like success.
ExitCode flushed(ExitCode code) {
  if (std::fflush(results()) == 0 && std::ferror(results()) == 0) return code;
  throw Error("the results could not be written to standard output (is the disk full?).",
              ExitCode::kFailed);
}

/// The first word that names a verb, if that one is left out.
void refuse_absent(int argc, const char* const* argv,
                   const std::vector<std::unique_ptr<Verb>>& verbs,
                   const std::vector<std::string>& absent) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (std::any_of(verbs.begin(), verbs.end(), [&](const auto& v) { return v->name() == word; }))
      return;
    if (std::find(absent.begin(), absent.end(), word) != absent.end())
      throw not_in_this_build(word);
  }
}

/// Where memory ends in a destructor, as it may in one of JSON documents, nothing can be caught.
[[noreturn]] void end_without_catch() noexcept {
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    std::fputs("error: this machine ran out of memory.\n", stderr);
    std::_Exit(static_cast<int>(ExitCode::kFailed));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: unexpected failure: %s.\n", error.what());
  } catch (...) {
  }
  std::abort();
}

std::string sentence_on(const std::system_error& error) {
  if (error.code() == std::errc::resource_unavailable_try_again) {
    return "no thread could be started: this machine ran out of memory, or of processes for this "
           "user (ulimit -u, ulimit -v).";
  }
  return fmt::format("unexpected failure: {}.", error.what());
}

/// Of a process that an assistant's server starts for a tool.
void restrict_to_root() {
  const char* root = host() == nullptr ? std::getenv(kReadRoot) : nullptr;
  if (root != nullptr && *root != '\0') restrict_reading({root, profiles::data_dir()});
}

/// `help` is `--help`, and `help VERB` is `VERB --help`.
std::vector<const char*> as_flag(int argc, const char* const* argv,
                                 const std::vector<std::unique_ptr<Verb>>& verbs) {
  std::vector<const char*> words(argv, argv + argc);
  if (argc < 2 || std::string_view(argv[1]) != "help") return words;
  words.erase(words.begin() + 1);
  const bool is_verb =
      argc == 2 || std::any_of(verbs.begin(), verbs.end(), [&](const std::unique_ptr<Verb>& verb) {
        return verb->name() == std::string_view(argv[2]);
      });
  if (is_verb) words.push_back("--help");
  return words;
}

ExitCode parse_and_run(int argc, const char* const* argv,
                       const std::vector<std::unique_ptr<Verb>>& verbs,
                       const std::vector<std::string>& absent, ColorMode& color) {
  refuse_absent(argc, argv, verbs, absent);
  restrict_to_root();
  CommandLine line("shardwright",
                   "Predicts, picks and runs sharded training of large language models.", kFooter);
  line.set_version([] { return version_text(); });
  line.root()
      .add_parsed(
          "--color", [&color](const std::string& text) { color = parse_color_mode(text); },
          "Colours: auto, always or never; NO_COLOR is respected")
      .type_name("WHEN");
  // The flags of all verbs take as long to declare as a plan takes to predict: those of a verb that
  // no word names are declared for whoever asks for the outline.
  std::vector<std::pair<Verb*, Command>> untold;
  for (const std::unique_ptr<Verb>& verb : verbs) {
    Command command = line.add_verb(verb->name(), verb->summary());
    const bool named = std::any_of(
        argv, argv + argc, [&](const std::string_view word) { return word == verb->name(); });
    if (named) {
      verb->declare_flags(command);
    } else {
      untold.emplace_back(verb.get(), command);
    }
  }
  const CommandLine::Parsed parsed = line.parse(argc, argv);
  if (parsed.answer) {
    fmt::print(results(), "{}", *parsed.answer);
    return flushed(ExitCode::kDone);
  }

  const Context context{describe_terminal(results(), color), describe_terminal(messages(), color),
                        command_line(argc, argv), [&] {
                          for (auto& [verb, command] : untold) verb->declare_flags(command);
                          untold.clear();
                          return line.outline();
                        }};
  for (const std::unique_ptr<Verb>& verb : verbs) {
    if (parsed.verb == verb->name()) return flushed(verb->run(context));
  }
  throw Error("no verb was given.", ExitCode::kUsage);
}

}  // namespace

int run_program(int argc, const char* const* argv, const std::vector<std::unique_ptr<Verb>>& verbs,
                const std::vector<std::string>& absent) {
  ColorMode color = ColorMode::kAuto;
  if (host() == nullptr) std::set_terminate(end_without_catch);
  try {
    const std::vector<const char*> words = as_flag(argc, argv, verbs);
    return static_cast<int>(
        parse_and_run(static_cast<int>(words.size()), words.data(), verbs, absent, color));
  } catch (const Error& error) {
    return fail(color, error.what(), error.code());
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(color, path_sentence(error), path_code(error));
  } catch (const std::bad_alloc&) {
    return fail(color, "this machine ran out of memory.", ExitCode::kFailed);
  } catch (const std::system_error& error) {
    return fail(color, sentence_on(error), ExitCode::kFailed);
  } catch (const std::exception& error) {
    return fail(color, fmt::format("unexpected failure: {}.", error.what()), ExitCode::kFailed);
  }
}

}  // namespace shardwright::cli
