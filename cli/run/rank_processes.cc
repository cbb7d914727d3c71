// SPDX-License-Identifier: Apache-2.0
#include "cli/run/rank_processes.h"

#include <fmt/core.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>

#include "cli/child.h"
#include "sim/core/base/error.h"

namespace shardwright::cli {
namespace {

/// That end a run, and that a child ended.
constexpr std::array<int, 7> kSignals = {SIGINT,  SIGTERM, SIGHUP, SIGUSR1,
                                         SIGUSR2, SIGALRM, SIGCHLD};

/// While one lives, these signals wait for who asks for them.
class HeldSignals {
 public:
  HeldSignals() {
    sigemptyset(&held_);
    for (const int one : kSignals) sigaddset(&held_, one);
    pthread_sigmask(SIG_BLOCK, &held_, &before_);
  }
  ~HeldSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  const sigset_t& before() const { return before_; }
  /// The next one, or 0 when the time is over.
  int next(double seconds) const {
    const auto whole = static_cast<time_t>(seconds);
    const timespec most{whole, static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};
    const int signal = sigtimedwait(&held_, nullptr, &most);
    return signal < 0 ? 0 : signal;
  }

 private:
  sigset_t held_{}, before_{};
};

/// In a group of its own, so that a terminal's Ctrl-C reaches it once.
pid_t start_rank(std::vector<std::string> words, int rank, int ranks, const sigset_t& mask,
                 int told) {
  std::vector<std::string> environment = {fmt::format("SHARDWRIGHT_RANK={}", rank),
                                          fmt::format("SHARDWRIGHT_RANKS={}", ranks)};
  for (char** one = environ; *one != nullptr; ++one) environment.emplace_back(*one);
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> all;
    for (std::string& text : texts) all.push_back(text.data());
    all.push_back(nullptr);
    return all;
  };
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setsigmask(&attributes, &mask);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  if (told >= 0) posix_spawn_file_actions_adddup2(&files, told, STDERR_FILENO);
  pid_t pid = -1;
  const int failed = ::posix_spawnp(&pid, words.front().c_str(), &files, &attributes,
                                    pointers(words).data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (failed == 0) return pid;
  throw Error(fmt::format("rank {} of {}: its process cannot be started: {}", rank, ranks,
                          std::strerror(failed)),
              ExitCode::kFailed);
}

/// The processes that live; what leaves it is dead. What others than rank 0 say is kept, because
/// all mostly say the same.
class RankProcesses {
 public:
  ~RankProcesses() {
    pass_on(SIGKILL);
    for (const pid_t pid : pids_) {
      if (pid > 0) ::waitpid(pid, nullptr, 0);
    }
    for (const int file : told_) {
      if (file >= 0) ::close(file);
    }
  }
  void start_all(const std::vector<std::string>& words, int ranks, const sigset_t& mask) {
    for (int rank = 0; rank < ranks; ++rank) {
      told_.push_back(rank == 0 ? -1 : ::memfd_create("stderr of a rank", MFD_CLOEXEC));
      pids_.push_back(start_rank(words, rank, ranks, mask, told_.back()));
    }
  }
  std::string told_by(int rank) const {
    std::string text(1 << 16, '\0');
    const int file = told_[static_cast<std::size_t>(rank)];
    const ssize_t got = file < 0 ? 0 : ::pread(file, text.data(), text.size(), 0);
    text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return text;
  }
  bool any() const {
    return std::any_of(pids_.begin(), pids_.end(), [](pid_t pid) { return pid > 0; });
  }
  void pass_on(int signal) const {
    for (const pid_t pid : pids_) {
      if (pid > 0) ::kill(pid, signal);
    }
  }
  /// ended(rank, status) of each that has.
  template <class Ended>
  void look(Ended&& ended) {
    for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
      int status = 0;
      if (pids_[rank] <= 0 || ::waitpid(pids_[rank], &status, WNOHANG) <= 0) continue;
      pids_[rank] = 0;
      ended(static_cast<int>(rank), status);
    }
  }

 private:
  std::vector<pid_t> pids_;
  std::vector<int> told_;
};

}  // namespace

bool starts_processes(Transport transport, const exec::LaunchEnvironment& launch,
                      std::int64_t ranks) {
  return transport == Transport::kNccl && launch.launcher == exec::Launcher::kNone && ranks > 1;
}

std::vector<std::string> own_words() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string one; std::getline(file, one, '\0');) arguments.push_back(one);
  if (!arguments.empty()) arguments.erase(arguments.begin());
  return own_command(arguments);
}

int run_processes(const std::vector<std::string>& words, int ranks, double grace_s) {
  constexpr double kLook_s = 1;  // signals of children may be one for several
  const HeldSignals signals;
  RankProcesses alive;
  alive.start_all(words, ranks, signals.before());
  int code = 0, failed = -1;
  bool first_spoke = false;  // rank 0 ended with a sentence of its own
  std::optional<std::chrono::steady_clock::time_point> failed_at;
  while (alive.any()) {
    const int signal = signals.next(kLook_s);
    if (signal != 0 && signal != SIGCHLD) alive.pass_on(signal);
    alive.look([&](int rank, int status) {
      const bool killed = WIFSIGNALED(status);
      const int mine = killed ? static_cast<int>(ExitCode::kFailed) : WEXITSTATUS(status);
      if (rank == 0 && mine != 0 && !killed) first_spoke = true;
      if (mine == 0 || code != 0) return;
      code = mine;
      failed = rank;
      failed_at = std::chrono::steady_clock::now();
      if (!killed) return;
      fmt::print(stderr, "error: rank {} of {}: its process was ended by signal {} ({})\n", rank,
                 ranks, WTERMSIG(status), strsignal(WTERMSIG(status)));
    });
    if (failed_at &&
        std::chrono::steady_clock::now() - *failed_at > std::chrono::duration<double>(grace_s))
      break;
  }
  if (failed > 0 && !first_spoke) fmt::print(stderr, "{}", alive.told_by(failed));
  return code;
}

void end_with_parent() {
  const pid_t parent = ::getppid();
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::raise(SIGTERM);
}

}  // namespace shardwright::cli
