// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <string>
#include <vector>

#include "cli/flags/completion_script.h"
#include "cli/verbs/verbs.h"
#include "profiles/data_file.h"
#include "sim/core/base/check.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/hf/config.h"
#include "sim/core/plan.h"

namespace shardwright::cli {
namespace {

using profiles::DataKind;

std::vector<std::string> with(std::vector<std::string> words, const std::string& more) {
  words.push_back(more);
  return words;
}

/// The names that ship, for the flags that take them.
std::optional<FlagValues> shipped_values(const std::string& flag) {
  const auto names = [](DataKind kind) { return profiles::shipped_names(kind); };
  if (flag == "--model") return FlagValues{builtin_models(profiles::data_dir() / "models"), true};
  if (flag == "--cluster" || flag == "--base" || flag == "--on") {
    return FlagValues{names(DataKind::kCluster), true};
  }
  if (flag == "--clusters") return FlagValues{with(names(DataKind::kCluster), "all"), true};
  if (flag == "--stack") return FlagValues{names(DataKind::kStack), true};
  if (flag == "--strategy" || flag == "--compare") return FlagValues{strategy_names(), false};
  return std::nullopt;
}

class CompletionVerb : public Verb {
 public:
  CompletionVerb()
      : Verb("completion", "a script that completes verbs, flags and names in bash, zsh or fish") {}
  void declare_flags(Command& command) override {
    command.add("SHELL", shell_, "as in: source <(shardwright completion bash)")
        .type_name("bash|zsh|fish");
  }
  ExitCode run(const Context& context) override {
    const std::optional<Shell> shell = shell_from(shell_);
    if (!shell) fail_word("SHELL", shell_, {"bash", "zsh", "fish"});
    SHARDWRIGHT_CHECK(context.outline != nullptr, "the command line is known");
    fmt::print(results(), "{}",
               completion_script(*shell, "shardwright", context.outline(), shipped_values));
    return ExitCode::kDone;
  }

 private:
  std::string shell_;
};

}  // namespace

std::unique_ptr<Verb> make_completion_verb() {
  return std::make_unique<CompletionVerb>();
}

}  // namespace shardwright::cli
