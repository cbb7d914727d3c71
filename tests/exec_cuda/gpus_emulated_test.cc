// SPDX-License-Identifier: Apache-2.0
// What a machine has, in words, on every kind of machine that the fake runtime can be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "exec/cuda/cuda_device.h"
#include "exec/cuda/gpus.h"
#include "sim/core/base/error.h"
#include "tests/support/cuda_on_cpu/fake_cuda.h"

namespace shardwright::exec {
namespace {

using ::testing::HasSubstr;

std::string problem(const cuda_on_cpu::FakeMachine& machine) {
  cuda_on_cpu::reset(machine);
  const cuda::Gpus gpus = cuda::find_gpus();
  EXPECT_EQ(gpus.usable.empty(), !gpus.problem.empty());
  return gpus.problem;
}

TEST(Gpus, SaysWhyThereIsNone) {
  cuda_on_cpu::FakeMachine machine;
  EXPECT_EQ(problem(machine), "");
  machine.device_count_error = cudaErrorInsufficientDriver;
  machine.driver_version = 0;
  EXPECT_EQ(problem(machine), "there is no CUDA driver on this machine");
  machine.driver_version = 12020;
  EXPECT_EQ(problem(machine),
            "the driver is for CUDA 12.2, while this build needs 13.0: driver R580 or newer, or on "
            "data-centre GPUs the package cuda-compat-13-0 with its folder in LD_LIBRARY_PATH");
  machine.device_count_error = cudaErrorNoDevice;
  EXPECT_EQ(problem(machine), "the CUDA driver lists no device");
  machine.device_count_error = cudaErrorStubLibrary;
  EXPECT_THAT(problem(machine), HasSubstr("stub"));
  machine.device_count_error = cudaErrorSystemNotReady;
  EXPECT_THAT(problem(machine),
              HasSubstr("start it with 'sudo systemctl start nvidia-fabricmanager'"));
  machine.device_count_error = cudaSuccess;
  machine.compute_major = 7;
  EXPECT_THAT(problem(machine), HasSubstr("compute capability 7.0, expected 8.0 or newer"));
}

TEST(Gpus, ListsThemWithTheirSizes) {
  cuda_on_cpu::FakeMachine machine;
  machine.devices = 3;
  cuda_on_cpu::reset(machine);
  const cuda::Gpus gpus = cuda::find_gpus();
  ASSERT_EQ(gpus.usable.size(), 3u);
  EXPECT_EQ(gpus.usable[2].index, 2);
  EXPECT_EQ(gpus.usable[2].memory_bytes, Bytes{1} << 30);
  EXPECT_EQ(gpus.usable[2].pci_address, "0000:1d:00.0");
  ASSERT_NE(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), nullptr);
}

TEST(Gpus, ThatCannotReadEachOtherAreRefusedWhereTheyMust) {
  cuda_on_cpu::FakeMachine machine;
  machine.devices = 2;
  machine.peers = false;
  cuda_on_cpu::reset(machine);
  CudaDeviceOptions options;
  EXPECT_NO_THROW(CudaDevice{options});
  options.peers = {0, 1};
  EXPECT_THROW(CudaDevice{options}, Error);
  machine.peers = true;
  cuda_on_cpu::reset(machine);
  EXPECT_NO_THROW(CudaDevice{options});
}

}  // namespace
}  // namespace shardwright::exec
