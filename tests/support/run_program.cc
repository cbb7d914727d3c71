// SPDX-License-Identifier: Apache-2.0
#include "tests/support/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>

#include "sim/core/base/check.h"

namespace shardwright::testing {
namespace {

[[noreturn]] void become(const std::vector<std::string>& arguments,
                         const std::vector<std::string>& environment) {
  for (const std::string& entry : environment) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos) {
      unsetenv(entry.c_str());
    } else {
      setenv(entry.substr(0, equals).c_str(), entry.substr(equals + 1).c_str(), 1);
    }
  }
  // As a shell starts it, whatever ignores signals around the tests.
  for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGUSR1}) std::signal(signal, SIG_DFL);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

// Reads both pipes until they end, so that a program which fills one of them never waits for us.
void drain(int out, int err, ProgramResult& result) {
  std::array<pollfd, 2> pipes{{{out, POLLIN, 0}, {err, POLLIN, 0}}};
  int open_pipes = 2;
  while (open_pipes > 0 && poll(pipes.data(), pipes.size(), -1) > 0) {
    for (std::size_t i = 0; i < pipes.size(); ++i) {
      if (pipes[i].fd < 0 || pipes[i].revents == 0) continue;
      std::array<char, 4096> buffer{};
      const ssize_t count = read(pipes[i].fd, buffer.data(), buffer.size());
      if (count <= 0) {
        close(pipes[i].fd);
        pipes[i].fd = -1;
        --open_pipes;
      } else {
        (i == 0 ? result.out : result.err).append(buffer.data(), static_cast<std::size_t>(count));
      }
    }
  }
}

}  // namespace

ProgramResult run_program(const std::vector<std::string>& arguments,
                          const std::vector<std::string>& environment,
                          const std::string& stdout_path) {
  std::array<int, 2> out{};
  std::array<int, 2> err{};
  SHARDWRIGHT_CHECK(pipe(out.data()) == 0 && pipe(err.data()) == 0, "no pipes");
  const pid_t child = fork();
  SHARDWRIGHT_CHECK(child >= 0, "cannot fork");
  if (child == 0) {
    const int file = stdout_path.empty() ? out[1] : open(stdout_path.c_str(), O_WRONLY);
    dup2(file, STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    for (const int descriptor : {out[0], out[1], err[0], err[1]}) close(descriptor);
    become(arguments, environment);
  }
  close(out[1]);
  close(err[1]);
  ProgramResult result;
  drain(out[0], err[0], result);
  int status = 0;
  waitpid(child, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace shardwright::testing
