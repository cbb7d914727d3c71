#include "cli/interrupt.h"

#include <array>
#include <csignal>
#include <cstddef>

namespace shardwright::cli {
namespace {

constexpr std::array<int, 2> kSignals{SIGINT, SIGTERM};

// A signal handler reaches nothing but what is static.
std::atomic<bool> interrupted{false};
std::array<struct sigaction, kSignals.size()> before;
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int /*signal*/) {
  interrupted = true;
}

}  // namespace

Interrupt::Interrupt() {
  interrupted = false;
  struct sigaction once {};
  once.sa_handler = on_signal;
  // SA_RESETHAND: the second signal of a kind has its usual effect.
  once.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigemptyset(&once.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &once, &before[i]);
}

Interrupt::~Interrupt() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before[i], nullptr);
}

const std::atomic<bool>& Interrupt::flag() const {
  return interrupted;
}

}  // namespace shardwright::cli
