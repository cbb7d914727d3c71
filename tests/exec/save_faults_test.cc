// SPDX-License-Identifier: Apache-2.0
// What a disk does to a checkpoint: it takes other bytes than it was given.
#include <gmock/gmock.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "tests/exec/train_fixture.h"

namespace {
std::atomic<bool> flips_a_bit{false};
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

namespace shardwright::exec {
namespace {

using namespace testing;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

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

}  // namespace
}  // namespace shardwright::exec
