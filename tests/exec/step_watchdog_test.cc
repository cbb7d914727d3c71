// SPDX-License-Identifier: Apache-2.0
// Guards the watchdog of steps: it speaks once, names where a rank stands, and leaves usual steps
// alone.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "exec/train/hang_watch.h"
#include "tests/exec/training.h"

namespace shardwright::exec {
namespace {

namespace fs = std::filesystem;
using namespace testing;

constexpr std::chrono::seconds kPatience{120};

class StepWatchdogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("shardwright-watchdog-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_F(StepWatchdogTest, TellsOnceWhereTheRankStandsAndLeavesARecord) {
  std::promise<std::string> told;
  int times = 0;
  const StepProgress stands{7, 30, "reduce_scatter of unit 2", "all_gather of unit 1"};
  StepWatchdog watchdog(
      {.factor = 2, .least_s = 0.02, .first_s = 0.05}, 3, folder_, [&] { return stands; },
      [&](const std::string& sentence) {
        if (times++ == 0) told.set_value(sentence);
      });
  watchdog.begin(12);
  std::future<std::string> sentence = told.get_future();
  ASSERT_EQ(sentence.wait_for(kPatience), std::future_status::ready);
  const std::string said = sentence.get();
  EXPECT_EQ(said.find("rank 3: step 12 has not ended after"), 0u) << said;
  EXPECT_NE(said.find("began 7 of 30 operations, the last was reduce_scatter of unit 2; the first "
                      "that is not done is all_gather of unit 1"),
            std::string::npos)
      << said;
  const auto record = nlohmann::json::parse(std::ifstream(folder_ / "flight-rank-00003.json"));
  EXPECT_EQ(record["step"], 12);
  EXPECT_EQ(record["oldest_unfinished"], "all_gather of unit 1");
  watchdog.begin(13);
  watchdog.end();
  EXPECT_EQ(times, 1);
}

TEST_F(StepWatchdogTest, TheLimitFollowsTheMedianOfTheSteps) {
  StepWatchdog watchdog(
      {.factor = 1e12, .least_s = 1e6, .first_s = 1e5}, 0, folder_, [] { return StepProgress{}; },
      [](const std::string& sentence) { FAIL() << sentence; });
  EXPECT_EQ(watchdog.limit_s(), 1e5);
  for (int step = 0; step < 40; ++step) {
    watchdog.begin(step);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    watchdog.end();
  }
  EXPECT_GT(watchdog.limit_s(), 1e6);  // 1e12 times 100 us and more
}

TEST_F(StepWatchdogTest, NamesTheOperationThatWaitsForARankThatNeverComes) {
  Training training;
  training.plan = tiny_plan(Strategy::kYafsdp, 2);
  const Schedule schedule =
      sim::executed_step(training.model, training.plan, native_stack(), training.gpus_per_node)
          .stages.front();
  kernels::host::Parallel parallel(1);
  LocalWorld world(2, static_cast<int>(schedule.shard_ranks()));
  std::promise<std::string> told;
  std::shared_future<std::string> sentence = told.get_future().share();
  world.run([&](int rank) {
    HostDevice device(parallel, StreamMode::kThreads);
    Executor executor(training.model, training.plan, schedule, device, world.groups(rank, device));
    executor.initialize(3);
    executor.world().barrier();
    if (rank == 1) {  // comes only when the other one has been told on
      EXPECT_EQ(sentence.wait_for(kPatience), std::future_status::ready);
      executor.step(batch_of(training, 1, rank), step_options(training, 1));
      return;
    }
    // However busy the machine is, the rank comes to its collective, and no farther.
    const auto at_the_collective = [&] {
      StepProgress progress = executor.progress();
      const auto begin = std::chrono::steady_clock::now();
      while ((progress.last_begun + progress.oldest_unfinished).find("all_gather") ==
                 std::string::npos &&
             std::chrono::steady_clock::now() - begin < kPatience / 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        progress = executor.progress();
      }
      return progress;
    };
    StepWatchdog watchdog({.least_s = 0.02, .first_s = 0.3}, rank, folder_, at_the_collective,
                          [&](const std::string& said) { told.set_value(said); });
    watchdog.begin(1);
    executor.step(batch_of(training, 1, rank), step_options(training, 1));
    watchdog.end();
  });
  EXPECT_NE(sentence.get().find("rank 0: step 1"), std::string::npos) << sentence.get();
  EXPECT_NE(sentence.get().find("all_gather of unit"), std::string::npos) << sentence.get();
}

}  // namespace
}  // namespace shardwright::exec
