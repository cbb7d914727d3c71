// SPDX-License-Identifier: Apache-2.0
// What a disk does to a checkpoint: it takes other bytes than it was given, is slow, or never
// answers.
#include <gmock/gmock.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "exec/train/checkpointer.h"
#include "exec/train/hang_watch.h"
#include "tests/exec/train_fixture.h"

namespace {
std::atomic<bool> flips_a_bit{false};
std::atomic<int> flush_ms{0};
thread_local int own_flush_ms = 0;  // of this thread alone
}  // namespace

// In the place of the C library's, for this whole program.
extern "C" ssize_t write(int fd, const void* data, std::size_t bytes) {
  if (bytes > 1000 && flips_a_bit.exchange(false)) {
    std::string other(static_cast<const char*>(data), bytes);
    other[bytes / 2] = static_cast<char>(other[bytes / 2] ^ 1);
    return ::syscall(SYS_write, fd, other.data(), bytes);
  }
  return ::syscall(SYS_write, fd, data, bytes);
}
extern "C" int fsync(int fd) {
  std::this_thread::sleep_for(std::chrono::milliseconds(flush_ms.load() + own_flush_ms));
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace shardwright::exec {
namespace {

using namespace testing;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using SaveFaults = TrainFixture;

TEST_F(SaveFaults, ABitThatTheDiskTookOtherwiseIsFoundBeforeTheCheckpointHasItsName) {
  options_.annotate = [](const StepMetrics& metrics) {
    if (metrics.step == 2) flips_a_bit = true;
  };
  const Outcome outcome = run("run", tiny_plan(Strategy::kSingle, 1), options_);
  EXPECT_THAT(outcome.notes,
              Contains(AllOf(HasSubstr("the checkpoint of step 2 could not be written"),
                             HasSubstr("the file was altered"))));
  EXPECT_FALSE(std::filesystem::exists(saved("run", 2)));
  EXPECT_NO_THROW(Checkpoint(saved("run", 4)).verify());
}

struct Heard {
  std::mutex mutex;
  std::vector<std::string> notes, hangs;
  SaveWatch::Tell tell() {
    return [this](const std::string& sentence, bool is_hang) {
      const std::lock_guard lock(mutex);
      (is_hang ? hangs : notes).push_back(sentence);
    };
  }
};

TEST_F(SaveFaults, AFlushThatIsSlowIsToldAndOneThatNeverEndsIsAHang) {
  for (const bool ends : {true, false}) {
    Heard heard;
    options_.on_slow_save = heard.tell();
    options_.save_limits = {0.1, ends ? 60 : 0.2};
    options_.save_every = 0;
    flush_ms = 250;
    const Outcome outcome = run(ends ? "slow" : "dead", tiny_plan(Strategy::kYafsdp, 2), options_);
    flush_ms = 0;
    EXPECT_THAT(heard.notes,
                Contains(AllOf(HasSubstr("rank 1: the checkpoint of step 6, whose file "
                                         "is "),
                               HasSubstr("rank-00001-of-00002.safetensors, takes "))));
    if (ends) {
      EXPECT_THAT(heard.notes, Contains(HasSubstr("whose files take their name in ")));
      EXPECT_THAT(heard.hangs, IsEmpty());
    } else {
      EXPECT_THAT(heard.hangs,
                  Contains(HasSubstr("rank-00001-of-00002.safetensors, has not ended")));
    }
  }
}

// Rank 0 gives a checkpoint its name while the others would already wait for it in the next step.
TEST_F(SaveFaults, AFlushThatIsSlowIsNoHangOfTheNextStep) {
  std::atomic<int> hangs{0};
  HangWatch watch(2, 1, [&](const std::string&) { ++hangs; });
  static thread_local std::unique_ptr<HangWatch::Member> member;
  options_.prepare = [&](Executor& executor, const Batch&) {
    member = std::make_unique<HangWatch::Member>(watch, executor.world().rank(), executor);
  };
  options_.annotate = [](const StepMetrics& metrics) {
    own_flush_ms = 600;
    // The files are written when the ranks vote next.
    if (metrics.step % 2 == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (metrics.step == 6) member.reset();
  };
  run("run", tiny_plan(Strategy::kYafsdp, 2), options_);
  EXPECT_EQ(hangs, 0);
}

TEST(SaveWatch, CountsEachStageForItself) {
  Heard heard;
  std::atomic<int> looks{0};
  const auto look = [&] {
    SaveStage stage{"it", false, looks / 4};
    ++looks;
    return stage;
  };
  {
    const SaveWatch watch({0.2, 10}, look, heard.tell());
    while (looks < 20) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_THAT(heard.notes, IsEmpty());
}

}  // namespace
}  // namespace shardwright::exec
