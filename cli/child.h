// SPDX-License-Identifier: Apache-2.0
// A child process whose output is read: this program again, for a tool of an assistant, or Python.
//
// A process of its own keeps stdout for the protocol, can be ended at any moment, and leaves this
// one alive whatever happens to it.
#pragma once

#include <sys/types.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright::cli {

/// How this program is started, where /proc/self/exe is another: an executable and what stands
/// before the arguments. To be called before the first own_command.
void set_own_start(std::vector<std::string> words);
/// The words that start this program with these arguments.
std::vector<std::string> own_command(const std::vector<std::string>& arguments);

class Child {
 public:
  /// Starts the executable that the first word names, by its path or on PATH, with `input` as
  /// stdin. Throws Error.
  explicit Child(std::vector<std::string> words, std::string_view input = {});
  /// Kills what still runs.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// Waits until it wrote something, ended, `also` (-1: nothing) can be read (true), or some
  /// milliseconds went by.
  bool wait(int also, int milliseconds);
  bool running() const { return out_fd_ >= 0 || err_fd_ >= 0; }
  /// Once it no longer runs: its exit code, 128 and the signal when one ended it.
  int exit_code();
  void kill();

  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

 private:
  void read_from(int& fd, std::string& into) const;

  pid_t pid_ = -1;
  int out_fd_ = -1, err_fd_ = -1;
  std::string out_, err_;
};

/// A script that the program carries, for python3 or what SHARDWRIGHT_PYTHON names. It says JSON,
/// or ends with 3 and a sentence where it refuses its input, with 5 where Python is too old.
struct PythonScript {
  const char* text;
  const char* reads;    // "a .py"
  const char* instead;  // what is read without Python
  double longest_s;     // scripts bound themselves; this is for what they overlook
};

/// What the script says to `input` with these arguments. Throws Error, by `name`.
nlohmann::json ask_python(const PythonScript& script, const std::vector<std::string>& arguments,
                          std::string_view input, const std::string& name);

}  // namespace shardwright::cli
