// SPDX-License-Identifier: Apache-2.0
#include "cli/config/shell_conditions.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::cli::settings_language {
namespace {

using Words = std::vector<std::string>;

/// A variable that the script does not set stands as it was written.
bool is_unset(std::string_view word) {
  return word.find('$') != word.npos || word.find('`') != word.npos;
}

std::optional<bool> compared(const std::string& left, std::string_view how,
                             const std::string& right) {
  if (is_unset(left) || is_unset(right)) return std::nullopt;
  if (how == "=" || how == "==") {
    if (right.find('*') != right.npos) return std::nullopt;  // a pattern
    return left == right;
  }
  if (how == "!=" && right.find('*') == right.npos) return left != right;
  const std::optional<std::int64_t> a = parse_int64(left), b = parse_int64(right);
  if (!a || !b) return std::nullopt;
  if (how == "-eq") return *a == *b;
  if (how == "-ne") return *a != *b;
  if (how == "-gt") return *a > *b;
  if (how == "-ge") return *a >= *b;
  if (how == "-lt") return *a < *b;
  if (how == "-le") return *a <= *b;
  return std::nullopt;
}

/// Of words without && and ||.
std::optional<bool> truth_of_one(Words words) {
  std::erase_if(words, [](const std::string& word) {
    return word == "[" || word == "[[" || word == "]" || word == "]]" || word == "test" ||
           word == ";";
  });
  bool turned = false;
  while (!words.empty() && first_of(words, "a condition") == "!") {
    turned = !turned;
    words.erase(words.begin());
  }
  std::optional<bool> holds;
  if (words.size() == 1 && (words[0] == "true" || words[0] == "false")) {
    holds = words[0] == "true";
  } else if (!words.empty() && words.size() <= 2 && (words[0] == "-z" || words[0] == "-n")) {
    const bool unset = words.size() == 2 && is_unset(words[1]);
    const bool empty = unset || words.size() == 1 || words[1].empty();
    holds = empty == (words[0] == "-z");
    if (unset && holds == turned) return std::nullopt;  // its users may set it
  } else if (words.size() == 3) {
    holds = compared(words[0], words[1], words[2]);
  }
  return holds ? std::optional(*holds != turned) : holds;
}

}  // namespace

std::optional<bool> shell_truth(const Words& words) {
  std::optional<bool> all;
  bool first = true, conjunction = true;
  auto begin = words.begin();
  for (;;) {
    const auto end = std::find_if(
        begin, words.end(), [](const std::string& word) { return word == "&&" || word == "||"; });
    const std::optional<bool> one = truth_of_one(Words(begin, end));
    if (first) {
      all = one;
    } else {
      // What decides alone, decides beside what is not known.
      const bool alone = !conjunction;
      if (all == alone || one == alone) {
        all = alone;
      } else if (!all || !one) {
        all.reset();
      }
    }
    if (end == words.end()) return all;
    first = false;
    conjunction = *end == "&&";
    begin = end + 1;
  }
}

std::optional<bool> shell_matches(const std::string& word, const std::string& pattern) {
  if (pattern == "*") return true;
  if (is_unset(word) || is_unset(pattern)) return std::nullopt;
  if (pattern.find_first_of("*?[") != pattern.npos) return std::nullopt;
  return word == pattern;
}

void ShellBranches::enter(Branch& branch, std::optional<bool> holds, std::string condition) {
  if (branch.done) {
    holds = false;
  } else if (branch.perhaps && holds.value_or(true)) {
    holds.reset();
  }
  branch.holds = holds;
  branch.done = branch.done || holds.value_or(false);
  branch.perhaps = branch.perhaps || !holds;
  branch.condition = std::move(condition);
}

void ShellBranches::begin(std::optional<bool> holds, std::string condition) {
  enter(branches_.emplace_back(), holds, std::move(condition));
}

void ShellBranches::otherwise(std::optional<bool> holds, std::string condition) {
  if (!branches_.empty()) enter(last_of(branches_, "else"), holds, std::move(condition));
}

void ShellBranches::end() {
  if (!branches_.empty()) branches_.pop_back();
}

bool ShellBranches::runs() const {
  return std::none_of(branches_.begin(), branches_.end(),
                      [](const Branch& branch) { return branch.holds == false; });
}

bool ShellBranches::certain() const {
  return std::all_of(branches_.begin(), branches_.end(),
                     [](const Branch& branch) { return branch.holds == true; });
}

std::string_view ShellBranches::condition() const {
  const auto open = std::find_if(branches_.rbegin(), branches_.rend(),
                                 [](const Branch& branch) { return !branch.holds; });
  return open == branches_.rend() ? std::string_view() : std::string_view(open->condition);
}

}  // namespace shardwright::cli::settings_language
