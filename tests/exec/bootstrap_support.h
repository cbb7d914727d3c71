// SPDX-License-Identifier: Apache-2.0
// Ranks as processes of their own, for the tests of rendezvous.
#pragma once

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "exec/comm/bootstrap.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/base/read_file.h"
#include "tests/support/temp_folder.h"

namespace shardwright::testing {

/// What no test waits out, however busy the machine is.
inline constexpr exec::BootstrapTimes kPatient{200, 200, 5, 200, 100};

/// A port at which nobody listens, and which the system gives to nobody else as long as this lives:
/// tests of other programs ask for ports at the same time. Who names it can listen there.
class FreePort {
 public:
  FreePort() : socket_(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    family_ = socket_.is_open() ? AF_INET6 : AF_INET;
    if (!socket_.is_open()) socket_ = exec::Socket(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int yes = 1;
    setsockopt(socket_.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in6 any{};  // both kinds of address begin with the family and the port
    any.sin6_family = family_;
    socklen_t size = family_ == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    auto* address = reinterpret_cast<sockaddr*>(&any);
    SHARDWRIGHT_CHECK(bind(socket_.fd(), address, size) == 0, "no port is free: errno {}", errno);
    SHARDWRIGHT_CHECK(getsockname(socket_.fd(), address, &size) == 0, "errno {}", errno);
    number_ = ntohs(any.sin6_port);
  }
  operator int() const { return number_; }

 private:
  exec::Socket socket_;
  sa_family_t family_ = AF_INET6;
  int number_ = 0;
};

/// What a process said when it ended: its error's sentence, or "done"; of one that could say
/// nothing, how it ended.
using Sayings = std::vector<std::string>;

/// By which processes tell each other how far they are.
class Marks {
 public:
  void set(const char* name, const std::string& text = "") const {
    // Whoever waits for the file finds it whole. Several processes may set one mark.
    const std::filesystem::path part = folder_.path() / fmt::format("{}.{}", name, getpid());
    std::ofstream file(part);
    if (!(file << text << std::flush)) throw Error(fmt::format("cannot write the mark {}", name));
    std::filesystem::rename(part, folder_.path() / name);
  }
  bool has(const char* name) const { return std::filesystem::exists(folder_.path() / name); }
  /// Gives up only where the test has failed long ago.
  void await(const char* name) const {
    for (int i = 0; i < 20'000 && !has(name); ++i) usleep(5000);
  }
  /// What was told with a mark.
  std::string text(const char* name) const {
    await(name);
    return read_file(folder_.path() / name, 1 << 16);
  }

 private:
  TempFolder folder_;
};

inline std::string ending_of(int status) {
  if (WIFSIGNALED(status)) return fmt::format("ended by signal {}", WTERMSIG(status));
  return fmt::format("ended without a word, exit code {}", WEXITSTATUS(status));
}

/// Forks `ranks` processes; body(rank) ends with "done" or its error's words. They begin when all
/// are there.
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
                                                                   : ending_of(status));
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
