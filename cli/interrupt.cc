// SPDX-License-Identifier: Apache-2.0
#include "cli/interrupt.h"

#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <system_error>

#include "cli/streams.h"
#include "sim/core/base/error.h"

namespace shardwright::cli {

namespace {

struct Wish {
  int signal;
  bool once;  // the second one has its usual effect
  Wishes least;
};
constexpr std::array<Wish, 6> kWishes{{{SIGINT, true, Wishes::kOfAPerson},
                                       {SIGTERM, true, Wishes::kOfAPerson},
                                       {SIGHUP, false, Wishes::kOfARun},
                                       {SIGUSR1, false, Wishes::kOfARun},
                                       {SIGUSR2, false, Wishes::kOfARun},
                                       {SIGALRM, false, Wishes::kOfARun}}};

// A signal handler reaches nothing but what is static.
std::atomic<bool> interrupted{false};
std::array<struct sigaction, kWishes.size()> replaced_actions;
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int /*signal*/) {
  interrupted = true;
}

}  // namespace

Interrupt::Interrupt(Wishes wishes) : hosts_(host() == nullptr ? nullptr : host()->wish) {
  if (hosts_ != nullptr) return;
  interrupted = false;
  for (std::size_t i = 0; i < kWishes.size(); ++i) {
    sigaction(kWishes[i].signal, nullptr, &replaced_actions[i]);
    if (replaced_actions[i].sa_handler == SIG_IGN || kWishes[i].least > wishes) continue;
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = (kWishes[i].once ? static_cast<int>(SA_RESETHAND) : 0) | SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(kWishes[i].signal, &action, nullptr);
  }
}

Interrupt::~Interrupt() {
  if (hosts_ != nullptr) return;
  for (std::size_t i = 0; i < kWishes.size(); ++i) {
    sigaction(kWishes[i].signal, &replaced_actions[i], nullptr);
  }
}

const std::atomic<bool>& Interrupt::flag() const {
  return hosts_ != nullptr ? *hosts_ : interrupted;
}

IgnoredPipes::IgnoredPipes() : before_(std::signal(SIGPIPE, SIG_IGN)) {}

IgnoredPipes::~IgnoredPipes() {
  std::signal(SIGPIPE, before_);
}

TimeLimit::TimeLimit(const std::atomic<bool>& wish, std::optional<double> seconds) : wish_(wish) {
  try {
    thread_ = std::thread([this, seconds] { watch(seconds); });
  } catch (const std::system_error&) {  // as within a page
    if (!seconds) return;
    throw Error("--time-limit needs a thread, and none can be started here.",
                ExitCode::kMissingDevice);
  }
}

TimeLimit::~TimeLimit() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  ended_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void TimeLimit::watch(std::optional<double> seconds) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  constexpr Seconds kGrace{0.7};
  constexpr std::chrono::milliseconds kLook{20};
  const auto begin = Clock::now();
  std::unique_lock lock(mutex_);
  while (!over_ && !wish_ && !(seconds && Clock::now() - begin >= Seconds(*seconds)))
    ended_.wait_for(lock, kLook);
  flag_ = !over_;
  for (const auto since = Clock::now(); !over_ && Clock::now() - since < kGrace;)
    ended_.wait_for(lock, kLook);
  last_flag_ = !over_;
}

}  // namespace shardwright::cli
