// SPDX-License-Identifier: Apache-2.0
// Errors that a user can cause.
//
// Bad input throws Error with one sentence that names the file, key or flag, the value found, and
// what would be accepted. "Nothing fits" is a value, not an exception; a broken invariant is a
// CHECK that aborts. Exit codes are part of the command-line contract; cli/main.cc is the only
// place that exits.
#pragma once

#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

namespace shardwright {

enum class ExitCode : int {
  kDone = 0,
  kFailed = 1,           // failed while running
  kUsage = 2,            // wrong flags
  kBadInput = 3,         // bad input file or value
  kInfeasible = 4,       // nothing fits
  kMissingDevice = 5,    // device or library missing
  kOutsideTolerance = 6  // comparison outside tolerance
};

/// One clear sentence for the user, with the exit code it deserves.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& sentence, ExitCode code = ExitCode::kBadInput)
      : std::runtime_error(sentence), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// What a model, a cluster or a framework does not admit. A search goes on without such a plan; all
// else that is thrown, as of a file that cannot be read, ends it.

class InvalidPlan : public Error {
 public:
  using Error::Error;
};

// The first and the last of what a stranger's file was read into: nothing there is a sentence,
// never undefined behaviour. Readers of such files use these alone (scripts/check_includes).

[[noreturn]] inline void fail_empty(std::string_view what) {
  throw Error(std::string(what) + " is empty, expected at least one entry");
}

/// Throws Error beginning with `what` where there is none.
template <typename Range>
auto& first_of(Range& range, std::string_view what) {
  if (range.empty()) fail_empty(what);
  return *range.begin();
}

template <typename Range>
auto& last_of(Range& range, std::string_view what) {
  if (range.empty()) fail_empty(what);
  return *std::prev(range.end());
}

}  // namespace shardwright
