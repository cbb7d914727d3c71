// SPDX-License-Identifier: Apache-2.0
// The program as a function: everything it prints comes back, nothing reaches the host's own
// streams, several run at once, and a host's wish ends a search while its signals stay as they are.
#include "cli/embed/verb_call.h"

#include <csignal>
#include <thread>

#include "cli/interrupt.h"
#include "cli/streams.h"
#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

const std::vector<std::string> kPredict{"predict",   "--model",  "gpt2",
                                        "--cluster", "dgx-h100", "--json"};

TEST(VerbCall, ResultsAndMessagesComeBackAndNothingElsewhere) {
  const std::vector<std::vector<std::string>> lines{
      kPredict,
      {"--help"},
      {"--version"},
      {"--version", "--json"},
      {"tune", "--help"},
      {"inspect", "clusters"},
      {"completion", "bash"},
      {"predict", "--model", "llama-3-8b", "--cluster", "dgx-h100", "--explain", "--jitter",
       "0.02"},
      {"tune", "--model", "gpt2", "--cluster", "dgx-h100", "--gpus", "2", "--threads", "1"},
      {"export", "--model", "llama-3-8b", "--cluster", "dgx-h100", "--strategy", "fsdp2",
       "--format", "torchtitan"}};
  for (const std::vector<std::string>& line : lines) {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    VerbCall call;
    EXPECT_EQ(call.run(line), 0) << call.messages();
    EXPECT_EQ(::testing::internal::GetCapturedStdout(), "") << line.front();
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << line.front();
    EXPECT_FALSE(call.results().empty()) << line.front();
  }
}

TEST(VerbCall, AnErrorIsACodeAndOneSentence) {
  VerbCall call;
  EXPECT_EQ(call.run({"predict", "--model", "nothing", "--cluster", "dgx-h100"}), 3);
  EXPECT_THAT(call.messages(), StartsWith("error: "));
  EXPECT_THAT(call.messages(), HasSubstr("nothing"));
  EXPECT_EQ(call.results(), "");
}

TEST(VerbCall, SeveralAtOnceAnswerAsOneAfterTheOther) {
  VerbCall alone;
  alone.run(kPredict);
  std::vector<std::string> answers(4);
  std::vector<std::thread> threads;
  for (std::string& answer : answers) {
    threads.emplace_back([&answer] {
      VerbCall call;
      call.run(kPredict);
      answer = call.results();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(answers, ::testing::Each(alone.results()));
  EXPECT_THAT(alone.results(), StartsWith("{"));
}

TEST(VerbCall, AStopEndsASearchBeforeItFindsAnything) {
  VerbCall call;
  call.stop();
  EXPECT_EQ(call.run({"tune", "--model", "llama-3.1-405b", "--cluster", "dgx-h100", "--gpus", "8",
                      "--json"}),
            1);
  EXPECT_THAT(call.messages(), HasSubstr("was stopped"));
}

TEST(BootstrapPeer, SignalsStayTheHosts) {
  std::atomic<bool> wish{false};
  const BootstrapPeer peer({stdout, stderr, &wish});
  void (*mine)(int) = [](int) {};
  const auto before = std::signal(SIGINT, mine);
  {
    const Interrupt interrupt;
    EXPECT_EQ(std::signal(SIGINT, mine), mine);
    EXPECT_FALSE(interrupt.flag());
    wish = true;
    EXPECT_TRUE(interrupt.flag());
  }
  std::signal(SIGINT, before);
}

TEST(BootstrapPeer, IsOneOfItsThreadOnly) {
  const BootstrapPeer peer({stderr, stdout, nullptr});
  EXPECT_EQ(results(), stderr);
  std::thread([] { EXPECT_EQ(results(), stdout); }).join();
}

}  // namespace
}  // namespace shardwright::cli
