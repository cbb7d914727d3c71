// SPDX-License-Identifier: Apache-2.0
// Ctrl-C asks once, then kills; afterwards everything is as before.
#include "cli/interrupt.h"

#include <gtest/gtest.h>

#include <csignal>

namespace shardwright::cli {
namespace {

TEST(Interrupt, TheFirstSignalIsARequest) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const Interrupt interrupt;
    EXPECT_FALSE(interrupt.flag());
    std::raise(signal);
    EXPECT_TRUE(interrupt.flag());
  }
}

TEST(Interrupt, ARunAlsoHearsALostTerminalAndABatchSystem) {
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

TEST(InterruptDeathTest, AnythingElseIsNotDelayedByIt) {
  EXPECT_EXIT(
      {
        const Interrupt interrupt;
        std::raise(SIGHUP);
      },
      ::testing::KilledBySignal(SIGHUP), "");
}

TEST(InterruptDeathTest, TheSecondSignalKills) {
  EXPECT_EXIT(
      {
        const Interrupt interrupt;
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      ::testing::KilledBySignal(SIGINT), "");
}

TEST(InterruptDeathTest, AfterwardsSignalsDoWhatTheyDidBefore) {
  EXPECT_EXIT(
      {
        { const Interrupt interrupt; }
        std::raise(SIGTERM);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace shardwright::cli
