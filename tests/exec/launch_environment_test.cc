// SPDX-License-Identifier: Apache-2.0
// Where a rank finds itself: every launcher is recognised, half a set is refused, and threads are
// bound to the processors near the rank's GPU.
#include "exec/comm/launch_environment.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "exec/host_memory.h"
#include "tests/support/refusal.h"

namespace shardwright::exec {
namespace {

using shardwright::testing::refusal_of;

using Variables = std::map<std::string, std::string>;

LaunchEnvironment found(const Variables& variables) {
  return launch_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto at = variables.find(name);
    return at == variables.end() ? std::nullopt : std::optional(at->second);
  });
}

std::string refusal(const Variables& variables) {
  return refusal_of([&] { found(variables); });
}

const Variables kTorchrun = {{"RANK", "5"},         {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},   {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29500"}};

TEST(LaunchEnvironment, RecognisesEveryLauncher) {
  EXPECT_EQ(found({}).launcher, Launcher::kNone);
  EXPECT_EQ(found({{"SLURM_NTASKS", "4"}}).launcher, Launcher::kNone) << "a batch script";

  // Within whatever else has started the run.
  Variables started = kTorchrun;
  started["SHARDWRIGHT_RANK"] = "3";
  started["SHARDWRIGHT_RANKS"] = "4";
  const LaunchEnvironment own = found(started);
  EXPECT_EQ(own.launcher, Launcher::kRun);
  EXPECT_EQ(own.rank, 3);
  EXPECT_EQ(own.local_rank, 3);
  EXPECT_EQ(own.local_ranks, 4);
  EXPECT_EQ(own.address, "");

  LaunchEnvironment torchrun = found(kTorchrun);
  EXPECT_EQ(torchrun.launcher, Launcher::kTorchrun);
  EXPECT_EQ(torchrun.rank, 5);
  EXPECT_EQ(torchrun.ranks, 8);
  EXPECT_EQ(torchrun.local_rank, 1);
  EXPECT_EQ(torchrun.local_ranks, 4);
  EXPECT_EQ(torchrun.address, "n0");
  EXPECT_EQ(torchrun.port, 29500);

  const LaunchEnvironment mpi = found({{"OMPI_COMM_WORLD_RANK", "2"},
                                       {"OMPI_COMM_WORLD_SIZE", "3"},
                                       {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}});
  EXPECT_EQ(mpi.launcher, Launcher::kOpenMpi);
  EXPECT_EQ(mpi.rank, 2);
  EXPECT_EQ(mpi.local_ranks, 0);
  EXPECT_EQ(found({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}).launcher, Launcher::kPmi);
  EXPECT_EQ(found({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "1"}}).launcher,
            Launcher::kSlurm);
}

TEST(LaunchEnvironment, TheFirstCompleteSetWinsAndOneProcessIsNone) {
  Variables both = kTorchrun;
  both["OMPI_COMM_WORLD_RANK"] = "0";
  both["OMPI_COMM_WORLD_SIZE"] = "2";
  EXPECT_EQ(found(both).launcher, Launcher::kTorchrun);
  EXPECT_EQ(found({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}).launcher,
            Launcher::kNone);
}

TEST(LaunchEnvironment, LeavesTorchrunsOwnPortAlone) {
  Variables agent = kTorchrun;
  agent["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(found(agent).port, 29501);
}

TEST(LaunchEnvironment, HalfASetIsRefusedWithWhatWasFound) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    Variables half = kTorchrun;
    half.erase(name);
    const std::string said = refusal(half);
    EXPECT_NE(said.find(std::string("but ") + name + " lacks"), std::string::npos) << said;
  }
  EXPECT_EQ(refusal({{"RANK", "1"}}).find("the environment of torchrun is half set: RANK=1 is"),
            0u);
  EXPECT_NE(refusal({{"OMPI_COMM_WORLD_SIZE", "2"}}).find("OMPI_COMM_WORLD_RANK lacks"),
            std::string::npos);
  EXPECT_NE(refusal({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}).find("SLURM_LOCALID lacks"),
            std::string::npos);
}

TEST(LaunchEnvironment, NumbersThatMakeNoSenseAreRefused) {
  Variables wrong = kTorchrun;
  wrong["RANK"] = "8";
  EXPECT_EQ(refusal(wrong),
            "the environment of torchrun has RANK=8, expected a number from 0 to 7");
  wrong["RANK"] = "x";
  EXPECT_NE(refusal(wrong).find("RANK=x"), std::string::npos);
}

// Processors, by a folder that plays /sys/bus/pci/devices.

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
