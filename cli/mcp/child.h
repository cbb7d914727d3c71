// SPDX-License-Identifier: Apache-2.0
// This program again, as a child whose output is read: how a tool is run.
//
// A process of its own keeps stdout for the protocol, can be cancelled at any moment, and leaves
// the server alive whatever happens to it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace shardwright::cli {

/// How this program is started, where /proc/self/exe is another: an executable and what stands
/// before the arguments. To be called before the first Child.
void set_own_start(std::vector<std::string> words);

class Child {
 public:
  /// Starts it with these arguments behind the program's name; stdin is empty. Throws Error.
  explicit Child(const std::vector<std::string>& arguments);
  /// Kills what still runs.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// Waits until it wrote something, ended, `also` can be read (true), or some milliseconds went
  /// by.
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

}  // namespace shardwright::cli
