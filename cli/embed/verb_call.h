// SPDX-License-Identifier: Apache-2.0
// The program as a function: the words of a command line in, exit code and texts out. The Python
// module and the planner page are made of this, so they can do exactly what the command line can,
// and nothing has to be told to them twice.
#pragma once

#include <atomic>
#include <string>
#include <vector>

namespace shardwright::cli {

/// One command line, run in this process. May be run on any thread, several calls at once.
class VerbCall {
 public:
  enum class Messages { kKept, kShown };

  /// Kept messages are messages(); shown ones go to stderr as they come, progress among them.
  explicit VerbCall(Messages where = Messages::kKept) : where_(where) {}

  /// Runs the program with `words`, the first after the program's name. Never throws; returns the
  /// exit code. To be called once.
  int run(const std::vector<std::string>& words);
  /// From another thread: searches end soon, with what they found so far.
  void stop() { wish_ = true; }

  const std::string& results() const { return results_; }
  const std::string& messages() const { return messages_; }

 private:
  Messages where_;
  std::atomic<bool> wish_{false};
  std::string results_, messages_;
};

/// The whole program on stdout, stderr and the signals of this process.
int run_as_program(int argc, const char* const* argv);

}  // namespace shardwright::cli
