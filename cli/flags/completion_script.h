// SPDX-License-Identifier: Apache-2.0
// Scripts that complete a program's command line in a shell, written from what was declared: a flag
// that --help knows is one that the shell offers.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/flags/command_line.h"

namespace shardwright::cli {

enum class Shell { kBash, kZsh, kFish };
/// None for another word.
std::optional<Shell> shell_from(std::string_view word);

/// What may stand behind a flag.
struct FlagValues {
  std::vector<std::string> words;
  bool files = false;  // paths of files are offered, too
};

/// The script for `program`. `known` gives the words of flags whose values are names that ship;
/// none leaves it to the type: "fp32|bf16" are words, FILE and PATH are files.
std::string completion_script(
    Shell shell, const std::string& program, const std::vector<VerbOutline>& outline,
    const std::function<std::optional<FlagValues>(const std::string& flag)>& known);

}  // namespace shardwright::cli
