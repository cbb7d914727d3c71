// SPDX-License-Identifier: Apache-2.0
// Guards exec/comm/launch_environment.h: every launcher is recognised, half a set is refused.
#include "exec/comm/launch_environment.h"

#include <gtest/gtest.h>

#include <map>

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

}  // namespace
}  // namespace shardwright::exec
