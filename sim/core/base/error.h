// SPDX-License-Identifier: Apache-2.0
// Errors that a user can cause.
//
// Bad input throws Error with one sentence that names the file, key or flag, the value found, and
// what would be accepted. "Nothing fits" is a value, not an exception; a broken invariant is a
// CHECK that aborts. Exit codes are part of the command-line contract; cli/main.cc is the only
// place that exits.
#pragma once

#include <stdexcept>
#include <string>

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

}  // namespace shardwright
