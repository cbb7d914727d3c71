// SPDX-License-Identifier: Apache-2.0
// Ctrl-C asks once, then kills; afterwards everything is as before.
#include "cli/interrupt.h"

#include <gtest/gtest.h>

#include <csignal>

namespace shardwright::cli {
namespace {

/// As in a shell, whatever ignores signals around the tests: nohup, a job in the background.
class Interrupts : public ::testing::Test {
 protected:
  Interrupts() {
    for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGUSR1}) std::signal(signal, SIG_DFL);
  }
};
using InterruptsDeathTest = Interrupts;

TEST_F(Interrupts, TheFirstSignalIsARequest) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const Interrupt interrupt;
    EXPECT_FALSE(interrupt.flag());
    std::raise(signal);
    EXPECT_TRUE(interrupt.flag());
  }
}

TEST_F(Interrupts, ARunAlsoHearsALostTerminalAndABatchSystem) {
  for (const int signal : {SIGHUP, SIGUSR1}) {
    const Interrupt interrupt(Wishes::kOfARun);
    std::raise(signal);
    EXPECT_TRUE(interrupt.flag());
    std::raise(signal);  // a shell and the system may both tell that the terminal is gone
  }
  std::signal(SIGHUP, SIG_IGN);  // nohup
  {
    const Interrupt interrupt(Wishes::kOfARun);
    std::raise(SIGHUP);
    EXPECT_FALSE(interrupt.flag());
  }
  EXPECT_EQ(std::signal(SIGHUP, SIG_DFL), SIG_IGN);
}

TEST_F(InterruptsDeathTest, AnythingElseIsNotDelayedByIt) {
  EXPECT_EXIT(
      {
        const Interrupt interrupt;
        std::raise(SIGHUP);
      },
      ::testing::KilledBySignal(SIGHUP), "");
}

TEST_F(InterruptsDeathTest, TheSecondSignalKills) {
  EXPECT_EXIT(
      {
        const Interrupt interrupt;
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      ::testing::KilledBySignal(SIGINT), "");
}

TEST_F(InterruptsDeathTest, AfterwardsSignalsDoWhatTheyDidBefore) {
  EXPECT_EXIT(
      {
        { const Interrupt interrupt; }
        std::raise(SIGTERM);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace shardwright::cli
