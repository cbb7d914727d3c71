// SPDX-License-Identifier: Apache-2.0
// Signals as a wish to end: the first one sets a flag that long work looks at.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

#include "sim/core/base/error.h"

namespace shardwright::cli {

/// Of a run that a signal stopped after it saved its state: start it again (EX_TEMPFAIL). Beside
/// the codes that every verb has.
inline constexpr ExitCode kStopped{75};

/// Whose wish counts. A person's: Ctrl-C and SIGTERM. A run's also a lost terminal's (SIGHUP) and a
/// batch system's warning (SIGUSR1: sbatch --signal=USR1@120; some
/// recipes send SIGUSR2, a timer SIGALRM).
enum class Wishes : std::uint8_t { kOfAPerson, kOfARun };

/// Of a peer (cli/streams.h) the flag is its host's, and signals stay as they are. Elsewhere:
/// While one of these lives, the first SIGINT or SIGTERM sets the flag instead of ending the
/// program; another one ends it, as usual. Those of a run alone may come more than once. A signal
/// that was ignored before (nohup) stays ignored. One at a time.
class Interrupt {
 public:
  explicit Interrupt(Wishes wishes = Wishes::kOfAPerson);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  const std::atomic<bool>& flag() const;

 private:
  const std::atomic<bool>* hosts_;  // null: signals set the flag
};

/// While one of these lives, writing to a pipe that nobody reads any more is an error of the write
/// instead of the end of the program.
class IgnoredPipes {
 public:
  IgnoredPipes();
  ~IgnoredPipes();
  IgnoredPipes(const IgnoredPipes&) = delete;
  IgnoredPipes& operator=(const IgnoredPipes&) = delete;

 private:
  void (*before_)(int);
};

// An end by the clock, for work that looks at a wish to end (cli/interrupt.h).

/// Its flag turns true when `wish` does, or `seconds` after it was made; a second flag 0.7 s after
/// the first, so that whoever looks at both ends within a second.
class TimeLimit {
 public:
  /// Without `seconds`, and where no thread can be started, the flag is the wish itself.
  TimeLimit(const std::atomic<bool>& wish, std::optional<double> seconds);
  ~TimeLimit();
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

  const std::atomic<bool>& flag() const { return thread_.joinable() ? flag_ : wish_; }
  const std::atomic<bool>& last_flag() const { return last_flag_; }

 private:
  void watch(std::optional<double> seconds);

  const std::atomic<bool>& wish_;
  std::atomic<bool> flag_{false}, last_flag_{false};
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace shardwright::cli
