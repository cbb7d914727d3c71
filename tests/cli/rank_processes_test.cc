// SPDX-License-Identifier: Apache-2.0
// Guards the processes that run starts for its ranks: what they are told, what becomes of their
// ends, and that nobody outlives the others.
#include "cli/run/rank_processes.h"

#include <unistd.h>

#include <csignal>
#include <thread>

#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

using shardwright::testing::TempFolder;

std::vector<std::string> script(const std::string& text) {
  return {"/bin/sh", "-c", text};
}

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(RankProcesses, AreStartedForNcclWithoutALauncher) {
  exec::LaunchEnvironment alone, launched;
  launched.launcher = exec::Launcher::kTorchrun;
  EXPECT_TRUE(starts_processes(Transport::kNccl, alone, 2));
  EXPECT_FALSE(starts_processes(Transport::kNccl, alone, 1));
  EXPECT_FALSE(starts_processes(Transport::kNccl, launched, 2));
  EXPECT_FALSE(starts_processes(Transport::kLocal, alone, 2)) << "ranks that share a GPU";
  launched.launcher = exec::Launcher::kRun;
  EXPECT_FALSE(starts_processes(Transport::kNccl, launched, 2)) << "no process starts more";
}

TEST(RankProcesses, AreThisProgramWithItsArguments) {
  const std::vector<std::string> words = own_words();
  ASSERT_FALSE(words.empty());
  EXPECT_EQ(words.front(), "/proc/self/exe");
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::size_t given = 0;
  for (std::string word; std::getline(file, word, '\0'); ++given) {
    if (given == 0) continue;
    EXPECT_EQ(words.at(given), word);
  }
  EXPECT_EQ(words.size(), given);
}

TEST(RankProcesses, KnowTheirRanks) {
  const TempFolder folder;
  const std::string path = folder.path().string();
  EXPECT_EQ(run_processes(script("echo $SHARDWRIGHT_RANK of $SHARDWRIGHT_RANKS >" + path +
                                 "/$SHARDWRIGHT_RANK"),
                          3),
            0);
  for (const char* rank : {"0", "1", "2"})
    EXPECT_EQ(text_of(folder.path() / rank), std::string(rank) + " of 3\n");
}

TEST(RankProcesses, EndWithTheCodeOfTheFirstThatFails) {
  EXPECT_EQ(run_processes(script("exit $SHARDWRIGHT_RANK"), 1), 0);
  EXPECT_EQ(run_processes(script("[ $SHARDWRIGHT_RANK = 2 ] || sleep 0.5; exit $((5 + "
                                 "SHARDWRIGHT_RANK))"),
                          3),
            7);
}

TEST(RankProcesses, OneThatWaitsForADeadOneIsEnded) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(
      run_processes(script("[ $SHARDWRIGHT_RANK = 1 ] || exec sleep 600; kill -9 $$"), 3, 0.2),
      static_cast<int>(ExitCode::kFailed));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "error: rank 1 of 3: its process was ended by signal 9 (Killed)\n");
}

// All say what all know; rank 0 is heard.
TEST(RankProcesses, SayOnceWhyTheyFail) {
  ::testing::internal::CaptureStderr();
  run_processes(script("echo no data >&2; exit 3"), 4);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "no data\n");
  ::testing::internal::CaptureStderr();
  run_processes(script("[ $SHARDWRIGHT_RANK != 2 ] && exec sleep 600; echo no GPU >&2; exit 5"), 3,
                0.2);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "no GPU\n") << "which rank 0 never heard of";
}

TEST(RankProcesses, AreToldOfSignals) {
  const TempFolder folder;
  const std::string ready = (folder.path() / "ready").string();
  std::thread sender([&] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);  // they are for who waits for them
    while (std::count(std::istreambuf_iterator<char>(std::ifstream(ready).rdbuf()), {}, '\n') < 2)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ::kill(::getpid(), SIGTERM);
  });
  EXPECT_EQ(
      run_processes(
          script("trap 'exit 75' TERM; echo >>" + ready + "; while :; do sleep 0.02; done"), 2),
      75);
  sender.join();
}

}  // namespace
}  // namespace shardwright::cli
