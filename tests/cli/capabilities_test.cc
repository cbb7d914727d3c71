// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "cli/machine/machine.h"
#include "tests/support/not_empty.h"

namespace shardwright::cli {
namespace {

using ::testing::HasSubstr;

// A machine with everything, and what is named in `missing` taken away.
Machine machine_without(const std::vector<std::string>& missing) {
  Machine machine;
  machine.operating_system = "Debian GNU/Linux 12 (bookworm)";
  machine.has_apt = true;
  machine.nvidia_devices = 2;
  machine.driver_cuda_version = 13000;
  machine.gpus.resize(2);
  for (const char* key :
       {"cuda_driver", "gpu", "cuda_toolkit", "cublas_lt", "nccl", "cupti", "cudnn", "nvrtc",
        "shared_memory", "locked_memory", "mpi", "cxx_compiler", "cmake", "ninja"}) {
    Component component;
    component.key = key;
    component.title = key;
    component.present = std::find(missing.begin(), missing.end(), key) == missing.end();
    if (!component.present) component.detail = "taken away";
    machine.components.push_back(component);
  }
  return machine;
}

BuildInfo full_build() {
  BuildInfo build;
  build.libraries = {{"CUDA toolkit", "13.0.88"}};
  build.executors = {"host", "cuda", "nccl", "mpi", "cupti"};
  return build;
}

std::map<std::string, Capability> by_name(const Machine& machine, const BuildInfo& build) {
  std::map<std::string, Capability> all;
  for (const Capability& c : capabilities(machine, build, {"predict", "run", "measure", "doctor"}))
    all[c.name] = c;
  return all;
}

TEST(Capabilities, EverythingOnAFullMachine) {
  for (const auto& [name, capability] : not_empty(by_name(machine_without({}), full_build()))) {
    EXPECT_TRUE(capability.available) << name << ": " << capability.reason;
    EXPECT_EQ(capability.reason, "") << name;
  }
}

TEST(Capabilities, PredictNeedsNothingAndRunIsNotAVerbThatCalculates) {
  const auto all = by_name(machine_without({"cuda_driver", "gpu", "cuda_toolkit", "nccl", "cupti",
                                            "cudnn", "mpi", "cxx_compiler", "cmake", "ninja"}),
                           BuildInfo{});
  EXPECT_TRUE(all.at("predict").available && all.at("predict").calculates);
  EXPECT_FALSE(all.contains("run"));
  EXPECT_FALSE(all.at("run --device host").available) << "this build has no executor at all";
}

TEST(Capabilities, ReasonsNameTheFirstThingThatIsMissing) {
  const auto no_driver = by_name(machine_without({"cuda_driver", "gpu"}), full_build());
  EXPECT_TRUE(no_driver.at("run --device host").available);
  EXPECT_EQ(no_driver.at("run --device cuda").reason, "no cuda_driver: taken away");
  EXPECT_EQ(
      by_name(machine_without({"cupti"}), full_build()).at("run --device cuda --trace FILE").reason,
      "no cupti: taken away");
  EXPECT_EQ(by_name(machine_without({"cublas_lt"}), full_build()).at("run --device cuda").reason,
            "no cublas_lt: taken away");
  EXPECT_EQ(by_name(machine_without({"nccl"}), full_build()).at("run --communicator nccl").reason,
            "no nccl: taken away");
  EXPECT_EQ(by_name(machine_without({"mpi"}), full_build()).at("run --communicator mpi").reason,
            "no mpi: taken away");
  BuildInfo no_cuda;
  no_cuda.why_no_cuda = "SHARDWRIGHT_ENABLE_CUDA is OFF";
  for (const char* name : {"run --device cuda", "run --communicator nccl", "measure --device cuda"})
    EXPECT_EQ(by_name(machine_without({}), no_cuda).at(name).reason,
              "this build has no cuda executor, because SHARDWRIGHT_ENABLE_CUDA is OFF; where CUDA "
              "12.9 or newer is installed, scripts/quickstart builds one");
}

TEST(Capabilities, AVerbThatIsNotInTheBuildIsNotClaimed) {
  for (const Capability& capability :
       capabilities(machine_without({}), full_build(), {"predict"})) {
    EXPECT_EQ(capability.available, capability.name == "predict") << capability.name;
  }
}

TEST(Capabilities, AnOldDriverIsNamed) {
  Machine machine = machine_without({});
  machine.driver_cuda_version = 12040;
  EXPECT_EQ(
      by_name(machine, full_build()).at("run --device cuda").reason,
      "the driver is for CUDA 12, while this build needs one for CUDA 13: driver R580 or newer, "
      "or on data-centre GPUs the package cuda-compat-13-0");
}

TEST(WhatRulesMiss, IsSaidOfNewerReleasesAlone) {
  std::vector<Component> components{{.key = "nccl", .present = true, .version = "2.28.9"},
                                    {.key = "nccl", .present = true, .version = "99.1.0"},
                                    {.key = "mpi", .present = true, .version = "99.1.0"}};
  components[1].detail = "/usr/lib";
  note_what_rules_miss(components);
  EXPECT_EQ(components[0].detail, "");
  EXPECT_THAT(components[1].detail, ::testing::StartsWith("/usr/lib; its rules were read up to "));
  EXPECT_THAT(components[1].detail, HasSubstr("so what 99.1.0 does otherwise is not known"));
  EXPECT_EQ(components[2].detail, "");
}

TEST(InstallAdvice, NothingForACompleteMachine) {
  EXPECT_TRUE(install_advice(machine_without({})).empty());
}

TEST(InstallAdvice, GivesACommandForEachMissingPart) {
  const std::vector<Advice> all = install_advice(machine_without({"nccl", "mpi", "cuda_driver"}));
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].command, "sudo apt-get install nvidia-driver");
  EXPECT_EQ(all[1].command, "sudo apt-get install libnccl2 libnccl-dev");
  EXPECT_EQ(all[2].command, "sudo apt-get install libopenmpi-dev openmpi-bin");
}

TEST(InstallAdvice, ADriverOnlyWhereThereIsAGpuAndNotInsideAContainer) {
  Machine machine = machine_without({"cuda_driver"});
  machine.in_container = true;
  EXPECT_THAT(install_advice(machine)[0].command, HasSubstr("--gpus all"));
  machine.nvidia_devices = 0;
  EXPECT_EQ(install_advice(machine)[0].command, "");
  EXPECT_THAT(install_advice(machine)[0].note, HasSubstr("PCI"));
}

TEST(InstallAdvice, ContainersAreStartedWithMoreOfWhatNcclShares) {
  Machine machine = machine_without({"shared_memory", "locked_memory"});
  EXPECT_EQ(install_advice(machine)[0].command, "sudo mount -o remount,size=1g /dev/shm");
  EXPECT_EQ(install_advice(machine)[1].command, "ulimit -l unlimited");
  machine.in_container = true;
  EXPECT_EQ(install_advice(machine)[0].command, "docker run --shm-size=1g ...");
  EXPECT_EQ(install_advice(machine)[1].command, "docker run --ulimit memlock=-1 ...");
}

TEST(InstallAdvice, NoAptCommandsWithoutApt) {
  Machine machine = machine_without({"mpi"});
  machine.has_apt = false;
  EXPECT_EQ(install_advice(machine)[0].command, "");
  EXPECT_NE(install_advice(machine)[0].note, "");
}

}  // namespace
}  // namespace shardwright::cli
