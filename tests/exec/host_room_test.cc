// SPDX-License-Identifier: Apache-2.0
// Guards what is asked of a machine's memory, by files that play Linux's and ranks that know
// numbers.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "exec/comm/local_communicator.h"
#include "exec/host/host_device.h"
#include "exec/host_memory.h"
#include "exec/train/checkpointer.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {
namespace {

namespace fs = std::filesystem;

class HostMemoryLeft : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  void put(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }
  std::optional<Bytes> left() const { return host_memory_left(folder_ / "meminfo", folder_); }

  fs::path folder_ =
      fs::temp_directory_path() / ("shardwright-host-memory-" + std::to_string(::getpid()));
};

TEST_F(HostMemoryLeft, IsWhatLinuxCallsAvailableWithSwap) {
  EXPECT_EQ(left(), std::nullopt);
  put("meminfo",
      "MemTotal:       1000 kB\nMemFree:  5 kB\nMemAvailable:  300 kB\nSwapFree: 20 kB\n");
  EXPECT_EQ(left(), 320 * 1024);
}

TEST_F(HostMemoryLeft, IsWhatAContainersGroupLeaves) {
  put("meminfo", "MemAvailable:  300 kB\n");
  put("memory.max", "max\n");
  put("memory.current", "50000\n");
  EXPECT_EQ(left(), 300 * 1024);
  put("memory.max", "100000\n");
  EXPECT_EQ(left(), 50000);
  put("memory.stat", "anon 4000\ninactive_file 7000\n");
  EXPECT_EQ(left(), 57000);
  put("memory.max", "20000\n");
  EXPECT_EQ(left(), 0);
}

/// What two ranks of this machine are told.
std::string verdict(Bytes mine, std::optional<Bytes> of_first, std::optional<Bytes> of_second) {
  LocalWorld world(2, 2);
  kernels::host::Parallel parallel(1);
  try {
    world.run([&](int rank) {
      HostDevice device(parallel, StreamMode::kInline);
      const RankGroups groups = world.groups(rank, device);
      require_host_room(*groups.world, mine, rank == 0 ? of_first : of_second);
    });
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(HostRoom, IsThatOfAllRanksOfAMachine) {
  constexpr Bytes kGibibyte = Bytes{1} << 30;
  EXPECT_EQ(verdict(kGibibyte, 2 * kGibibyte, 2 * kGibibyte), "");
  EXPECT_EQ(verdict(kGibibyte, {}, {}), "");
  EXPECT_EQ(verdict(kGibibyte, {}, kGibibyte + kGibibyte / 2),
            "checkpoints copy the state of the ranks on one machine to its memory first, 2.00 GiB, "
            "of which 1.50 are left; expected more of it, more machines, or --save none");
}

}  // namespace
}  // namespace shardwright::exec
