// SPDX-License-Identifier: Apache-2.0
// Guards how far hosts run ahead of their GPUs over NCCL. A driver queues some 1,024 launches of a
// process; who makes the next one waits and keeps the lock that all its threads need (the rule
// cuda_driver.launch_queue, inferred). Devices here have such a driver.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "exec/libraries/rules.h"
#include "tests/exec/staged_training.h"
#include "tests/exec_nccl/nccl_training.h"

namespace shardwright::exec {
namespace {

using namespace testing;
using namespace std::chrono_literals;

/// The driver of one process.
class Driver {
 public:
  std::mutex lock;  // that calls of all threads take, and who waits for room keeps

  /// Under the lock. A queue that stays full for long has hung: then it has room again.
  void launch() {
    std::unique_lock count(mutex_);
    while (launches_ >= kMost && !hangs_) {
      const std::int64_t before = ended_;
      changed_.wait_for(count, 3s, [&] { return launches_ < kMost; });
      hangs_ = launches_ >= kMost && ended_ == before;
    }
    most_ = std::max(most_, ++launches_);
  }
  void end() {
    const std::lock_guard count(mutex_);
    --launches_;
    ++ended_;
    changed_.notify_all();
  }
  bool hangs() const { return hangs_; }
  std::int64_t most() const { return most_; }

 private:
  const std::int64_t kMost = libraries::rule_number("cuda_driver.launch_queue", "launches");
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t launches_ = 0, most_ = 0, ended_ = 0;
  std::atomic<bool> hangs_ = false;
};

/// Each operation of the schedule is some launches, so is each kernel of NCCL one.
class QueuedDevice final : public HostDevice {
 public:
  QueuedDevice(kernels::host::Parallel& parallel, Driver& driver, int run_ahead)
      : HostDevice(parallel, StreamMode::kThreads),
        driver_(driver),
        run_ahead_(static_cast<std::size_t>(run_ahead)) {}

  void begin_operation(std::int64_t number) override {
    HostDevice::begin_operation(number);
    for (int i = 0; i < 2 && number >= 0; ++i) call(0, [] {});
  }
  void call(StreamId stream, std::function<void()> function) override {
    const std::lock_guard lock(driver_.lock);
    driver_.launch();
    HostDevice::call(stream, [this, function = std::move(function)] {
      function();
      driver_.end();
    });
  }
  void record(StreamId stream, Event& event) override {
    const std::lock_guard lock(driver_.lock);
    HostDevice::record(stream, event);
  }
  void wait(StreamId stream, const Event& event) override {
    const std::lock_guard lock(driver_.lock);
    HostDevice::wait(stream, event);
  }
  /// As CudaDevice's.
  void limit_run_ahead(StreamId stream) override {
    std::deque<std::unique_ptr<Event>>& passed = passed_[stream];
    if (passed.size() >= run_ahead_) {
      while (!passed.front()->has_passed() && !driver_.hangs() && !has_failed())
        std::this_thread::sleep_for(50us);
      passed.pop_front();
    }
    record(stream, *passed.emplace_back(make_event()));
  }

 private:
  Driver& driver_;
  std::size_t run_ahead_;
  std::map<StreamId, std::deque<std::unique_ptr<Event>>> passed_;
};

// While rank 0 commits a checkpoint the others are in the next step.
TEST(LaunchQueue, ThreadsDoNotFillItWhileOneOfThemSavesACheckpoint) {
  for (const Strategy strategy : {Strategy::kYafsdp, Strategy::kDdp}) {
    SCOPED_TRACE(name_of(strategy));
    Training training;
    training.model = tiny_llama();
    training.plan = tiny_plan(strategy, 4, 16);
    training.mode = StreamMode::kThreads;
    shardwright::testing::reset_fake_nccl();
    Driver driver;
    on_nccl_ranks(
        training,
        [&](Bootstrap& bootstrap, Executor& executor) {
          const int rank = bootstrap.rank();
          executor.initialize(3);
          executor.step(batch_of(training, 1, rank), step_options(training, 1));
          if (rank == 0) std::this_thread::sleep_for(500ms);
          executor.step(batch_of(training, 2, rank), step_options(training, 2));
        },
        [&](kernels::host::Parallel& parallel, int) {
          return std::make_unique<QueuedDevice>(parallel, driver, libraries::run_ahead_of(4));
        });
    EXPECT_FALSE(driver.hangs()) << "a thread waits for room and keeps the lock";
    EXPECT_GT(driver.most(), 100) << "hosts are ahead";
    EXPECT_LT(driver.most(), 1024);
  }
}

// A host that waits for its streams still issues what others wait for.
TEST(LaunchQueue, StagesDoNotWaitForEachOther) {
  using enum PipelineKind;
  for (const StagedLayout& layout :
       {StagedLayout{kOneForwardOneBackward, 2, 2, 1, 2, 2}, StagedLayout{kInterleaved, 1, 2, 2},
        StagedLayout{kInterleaved, 2, 2, 2, 1}, StagedLayout{kZb1p, 1, 4, 1, 1, 6},
        StagedLayout{kZbv, 1, 2, 2}}) {
    SCOPED_TRACE(words_of(layout));
    Training training = staged(tiny_llama(), Strategy::kYafsdp, layout, false);
    training.mode = StreamMode::kThreads;
    shardwright::testing::reset_fake_nccl();
    const auto local = train(training);
    Driver driver;
    const auto nccl = train_over_nccl(training, [&](kernels::host::Parallel& parallel, int) {
      return std::make_unique<QueuedDevice>(parallel, driver, 1);
    });
    expect_near_training(local, nccl, 2e-5);
    EXPECT_FALSE(driver.hangs());
  }
}

}  // namespace
}  // namespace shardwright::exec
