// SPDX-License-Identifier: Apache-2.0
#include "cli/child.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"

namespace shardwright::cli {
namespace {

/// An executable and its first arguments; empty: /proc/self/exe.
std::vector<std::string>& own_start() {
  static std::vector<std::string> words;
  return words;
}

void close_fd(int& fd) {
  if (fd >= 0) ::close(fd);
  fd = -1;
}

/// A nameless file in memory, read from its begin: whoever reads it need not be waited for. -1
/// where none can be made.
int file_with(std::string_view text) {
  int fd = ::memfd_create("input", MFD_CLOEXEC);
  while (fd >= 0 && !text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (written == 0 || errno != EINTR) {
      close_fd(fd);
    }
  }
  if (fd >= 0) ::lseek(fd, 0, SEEK_SET);
  return fd;
}

}  // namespace

void set_own_start(std::vector<std::string> words) {
  own_start() = std::move(words);
}

std::vector<std::string> own_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = own_start();
  if (words.empty()) words = {"/proc/self/exe"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

Child::Child(std::vector<std::string> words, std::string_view input) {
  std::array<int, 2> out{-1, -1}, err{-1, -1};
  int in = file_with(input);
  if (in < 0 || ::pipe2(out.data(), O_CLOEXEC) != 0 || ::pipe2(err.data(), O_CLOEXEC) != 0) {
    for (int* fd : {&in, &out[0], &out[1], &err[0], &err[1]}) close_fd(*fd);
    throw Error("no pipe for a tool can be opened: too many files are open", ExitCode::kFailed);
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in, 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int failed = ::posix_spawnp(&pid_, argv.front(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  for (int* fd : {&in, &out[1], &err[1]}) close_fd(*fd);
  if (failed != 0) {
    pid_ = -1;
    close_fd(out[0]);
    close_fd(err[0]);
    throw Error(fmt::format("{} cannot be started: {}", argv.front(), std::strerror(failed)),
                ExitCode::kFailed);
  }
  out_fd_ = out[0];
  err_fd_ = err[0];
}

Child::~Child() {
  kill();
  close_fd(out_fd_);
  close_fd(err_fd_);
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
}

void Child::kill() {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
}

void Child::read_from(int& fd, std::string& into) const {
  std::array<char, 65536> buffer;
  const ssize_t got = ::read(fd, buffer.data(), buffer.size());
  if (got > 0) {
    into.append(buffer.data(), static_cast<std::size_t>(got));
  } else if (got == 0 || errno != EINTR) {
    close_fd(fd);
  }
}

bool Child::wait(int also, int milliseconds) {
  // A descriptor of -1 is passed over by poll.
  std::array<pollfd, 3> fds{pollfd{out_fd_, POLLIN, 0}, pollfd{err_fd_, POLLIN, 0},
                            pollfd{also, POLLIN, 0}};
  if (::poll(fds.data(), fds.size(), milliseconds) < 0) return false;
  if (fds[0].revents != 0) read_from(out_fd_, out_);
  if (fds[1].revents != 0) read_from(err_fd_, err_);
  return fds[2].revents != 0;
}

int Child::exit_code() {
  int status = 0;
  while (pid_ > 0 && ::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

namespace {

constexpr std::size_t kMostAnswerBytes = std::size_t{32} << 20;

[[noreturn]] void fail_without_python(const PythonScript& script, const std::string& name,
                                      const std::string& why) {
  throw Error(
      fmt::format("{}: reading {} needs python3, or what SHARDWRIGHT_PYTHON names, of 3.9 or "
                  "newer, but {}; {} is read without it",
                  name, script.reads, why, script.instead),
      ExitCode::kMissingDevice);
}

}  // namespace

nlohmann::json ask_python(const PythonScript& script, const std::vector<std::string>& arguments,
                          std::string_view input, const std::string& name) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(script.longest_s);
  const char* chosen = std::getenv("SHARDWRIGHT_PYTHON");
  const std::string python = chosen != nullptr && *chosen != '\0' ? chosen : "python3";
  std::vector<std::string> words{python, "-I", "-S", "-c", script.text};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::unique_ptr<Child> child;
  try {
    child = std::make_unique<Child>(std::move(words), input);
  } catch (const Error& error) {
    fail_without_python(script, name, error.what());
  }
  while (child->running()) {
    const double left_s = std::chrono::duration<double>(end - Clock::now()).count();
    if (left_s <= 0)
      throw Error(fmt::format("{}: took longer than {:g} s to read", name, script.longest_s));
    if (child->out().size() > kMostAnswerBytes)
      throw Error(fmt::format("{}: says more than {} MiB", name, kMostAnswerBytes >> 20));
    child->wait(-1, static_cast<int>(left_s * 1e3) + 1);
  }
  const int code = child->exit_code();
  if (code == static_cast<int>(ExitCode::kBadInput))
    throw Error(fmt::format("{}: {}", name, child->out()));
  if (code == static_cast<int>(ExitCode::kMissingDevice))
    fail_without_python(script, name, child->out());
  nlohmann::json answer = shardwright::parse_json(child->out(), false);
  if (code != 0 || !answer.is_structured()) {
    std::string_view last = child->err();
    while (last.ends_with('\n')) last.remove_suffix(1);
    last.remove_prefix(last.rfind('\n') + 1);  // npos + 1 is 0
    fail_without_python(script, name,
                        fmt::format("{} ended with exit code {}, saying '{}'", python, code, last));
  }
  return answer;
}

}  // namespace shardwright::cli
