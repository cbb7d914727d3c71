// SPDX-License-Identifier: Apache-2.0
// Guards the binding of ranks to processors, by a folder that plays /sys/bus/pci/devices.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "exec/host_memory.h"

namespace shardwright::exec {
namespace {

namespace fs = std::filesystem;

TEST(CpuBinding, ReadsLinuxsLists) {
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11\n"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_cpu_list("5"), std::vector<int>{5});
  EXPECT_EQ(parse_cpu_list(""), std::vector<int>{});
  for (const char* bad : {"3-1", "a", "1,", "-2", "1;2", "0-99999999"}) {
    const auto read = parse_cpu_list(bad);
    EXPECT_TRUE(!read || read == std::vector<int>{1}) << bad;
  }
}

TEST(CpuBinding, FindsWhatIsNearADevice) {
  const fs::path devices =
      fs::temp_directory_path() / ("shardwright-pci-" + std::to_string(::getpid()));
  fs::create_directories(devices / "0000:1b:00.0");
  std::ofstream(devices / "0000:1b:00.0" / "local_cpulist") << "32-63\n";
  // The runtime writes addresses in capitals.
  EXPECT_EQ(cpus_near("0000:1B:00.0", devices).size(), 32u);
  EXPECT_TRUE(cpus_near("0000:2C:00.0", devices).empty());
  fs::remove_all(devices);
}

TEST(CpuBinding, KeepsAThreadWhereItMayRun) {
  std::thread([] {
    cpu_set_t before;
    ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    int one = 0;
    while (!CPU_ISSET(one, &before)) ++one;
    EXPECT_FALSE(bind_this_thread({CPU_SETSIZE - 1}));
    EXPECT_TRUE(bind_this_thread({one, CPU_SETSIZE - 1}));
    cpu_set_t after;
    ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    EXPECT_EQ(CPU_COUNT(&after), 1);
    EXPECT_TRUE(CPU_ISSET(one, &after));
    // Threads that it starts stay there.
    std::thread([one] { EXPECT_EQ(sched_getcpu(), one); }).join();
  }).join();
}

}  // namespace
}  // namespace shardwright::exec
