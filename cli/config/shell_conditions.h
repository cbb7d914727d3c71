// SPDX-License-Identifier: Apache-2.0
// The conditions of a shell script, as far as constants decide them. What stands under one that
// does not hold is not read; what stands under one that only running it would decide is kept apart.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright::cli::settings_language {

/// Whether a condition holds, by its words with variables filled in: [ A = B ], [[ A == B && .. ]],
/// test, -eq and its like, -z and -n, && and ||. None: it is about anything else, or about a
/// variable that the script does not set; but that one is empty is believed, as "${A:-default}" is.
std::optional<bool> shell_truth(const std::vector<std::string>& words);

/// Whether a word is of a pattern of case.
std::optional<bool> shell_matches(const std::string& word, const std::string& pattern);

/// The conditions around the line that is read.
class ShellBranches {
 public:
  void begin(std::optional<bool> holds, std::string condition);      // if, case
  void otherwise(std::optional<bool> holds, std::string condition);  // elif, else
  void end();                                                        // fi, esac

  bool runs() const;     // no condition around it certainly fails
  bool certain() const;  // all certainly hold
  /// The innermost one that is not decided.
  std::string_view condition() const;

 private:
  struct Branch {
    std::optional<bool> holds;
    bool done = false;     // an earlier branch certainly runs
    bool perhaps = false;  // one may
    std::string condition;
  };
  static void enter(Branch& branch, std::optional<bool> holds, std::string condition);
  std::vector<Branch> branches_;
};

}  // namespace shardwright::cli::settings_language
