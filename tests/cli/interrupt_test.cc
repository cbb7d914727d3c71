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

TEST(InterruptDeathTest, TheSecondSignalKills) {
  EXPECT_EXIT(
      {
        const Interrupt interrupt;
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
}

TEST(InterruptDeathTest, AfterwardsSignalsDoWhatTheyDidBefore) {
  EXPECT_EXIT(
      {
        { const Interrupt interrupt; }
        std::raise(SIGTERM);
      },
      testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace shardwright::cli
