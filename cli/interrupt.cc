// SPDX-License-Identifier: Apache-2.0
#include "cli/interrupt.h"

#include <array>
#include <csignal>
#include <cstddef>

#include "cli/streams.h"

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
std::array<struct sigaction, kWishes.size()> before;
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int /*signal*/) {
  interrupted = true;
}

}  // namespace

Interrupt::Interrupt(Wishes wishes) : hosts_(host() == nullptr ? nullptr : host()->wish) {
  if (hosts_ != nullptr) return;
  interrupted = false;
  for (std::size_t i = 0; i < kWishes.size(); ++i) {
    sigaction(kWishes[i].signal, nullptr, &before[i]);
    if (before[i].sa_handler == SIG_IGN || kWishes[i].least > wishes) continue;
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
    sigaction(kWishes[i].signal, &before[i], nullptr);
  }
}

const std::atomic<bool>& Interrupt::flag() const {
  return hosts_ != nullptr ? *hosts_ : interrupted;
}

IgnoredPipes::IgnoredPipes() : before_(std::signal(SIGPIPE, SIG_IGN)) {}

IgnoredPipes::~IgnoredPipes() {
  std::signal(SIGPIPE, before_);
}

}  // namespace shardwright::cli
