// SPDX-License-Identifier: Apache-2.0
// Ranks as processes of their own, for the tests of rendezvous.
#pragma once

#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "exec/comm/rendezvous.h"
#include "sim/core/read_file.h"
#include "tests/support/temp_folder.h"

namespace shardwright::testing {

/// What no test waits out, however busy the machine is.
inline constexpr exec::BootstrapTimes kPatient{200, 200, 5, 200, 100};

inline int free_port() {
  return exec::listen_on("", 0).port;
}

/// What a process said when it ended: its error's sentence, or "done".
using Sayings = std::vector<std::string>;

/// By which processes tell each other how far they are.
class Marks {
 public:
  void set(const char* name) const { std::ofstream(folder_.path() / name) << "."; }
  bool has(const char* name) const { return std::filesystem::exists(folder_.path() / name); }
  /// Gives up only where the test has failed long ago.
  void await(const char* name) const {
    for (int i = 0; i < 20'000 && !has(name); ++i) usleep(5000);
  }

 private:
  TempFolder folder_;
};

/// Forks `ranks` processes; body(rank) ends with "done" or its error's words. They begin when all
/// are there. A process that was killed says nothing.
inline Sayings in_processes(int ranks, const std::function<void(int rank)>& body) {
  const TempFolder folder;
  int gate[2];  // reading ends when the parent closes its end
  if (pipe(gate) != 0) return {};
  const auto path = [&](int rank) { return folder.path() / fmt::format("said-{}", rank); };
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      char nothing = 0;
      close(gate[1]);
      std::string said = read(gate[0], &nothing, 1) == 0 ? "done" : "the gate broke";
      close(gate[0]);
      try {
        body(rank);
      } catch (const std::exception& error) {
        said = error.what();
      }
      std::ofstream(path(rank)) << said;
      _exit(0);
    }
    children.push_back(child);
  }
  close(gate[0]);
  close(gate[1]);
  Sayings sayings;
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    waitpid(children[static_cast<std::size_t>(rank)], &status, 0);
    std::error_code missing;
    sayings.push_back(std::filesystem::exists(path(rank), missing) ? read_file(path(rank), 1 << 16)
                                                                   : "");
  }
  return sayings;
}

inline exec::LaunchEnvironment launched(int rank, int ranks) {
  exec::LaunchEnvironment launch;
  launch.launcher = exec::Launcher::kTorchrun;
  launch.rank = rank;
  launch.ranks = ranks;
  return launch;
}

inline exec::Rendezvous at_port(int port) {
  exec::Rendezvous rendezvous;
  rendezvous.host = "127.0.0.1";
  rendezvous.port = port;
  return rendezvous;
}

}  // namespace shardwright::testing
