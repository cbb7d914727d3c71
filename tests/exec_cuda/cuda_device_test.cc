// SPDX-License-Identifier: Apache-2.0
// What exec/device.h promises, on CUDA, and what is CUDA's own.
#include "exec/cuda/cuda_device.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "sim/core/base/error.h"
#include "tests/exec/device_contract.h"
#include "tests/exec_cuda/fixture.h"
#include "tests/support/parameter_name.h"

namespace shardwright::exec {
namespace {

using namespace testing;
using ::testing::HasSubstr;

/// On the processor: several of the orders in which a GPU may run streams.
std::vector<DeviceCase> gpus() {
  std::vector<DeviceCase> all;
  for (std::uint64_t seed = 1; seed <= (kEmulated ? 8 : 1); ++seed) {
    const auto make = [seed] {
      use_order(seed);
      return std::make_unique<CudaDevice>();
    };
    all.push_back({fmt::format("order_{}", seed), make, why_no_gpu});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceContract, ::testing::ValuesIn(gpus()), parameter_name);

using CudaDeviceTest = OnCuda<::testing::Test>;

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST_F(CudaDeviceTest, SaysHowMuchMemoryWasAsked) {
  CudaDevice device;
  EXPECT_THAT(message_of([&] { device.allocate(Bytes{1} << 50); }),
              HasSubstr("1125899906842624 bytes of GPU memory"));
}

TEST_F(CudaDeviceTest, TimestampsAreNearTheHostsClock) {
  CudaDevice device;
  const StreamId s = device.make_stream("compute", 0);
  const auto now = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  for (int round = 0; round < 3; ++round) {
    Nanoseconds at = 0;
    const Nanoseconds begin = now();
    device.timestamp(s, &at);
    device.synchronize();
    constexpr Nanoseconds kSlack = 50'000'000;
    EXPECT_GT(at, begin - kSlack);
    EXPECT_LT(at, now() + kSlack);
  }
}

TEST_F(CudaDeviceTest, LimitsHowFarTheHostRunsAhead) {
  CudaDeviceOptions options;
  options.run_ahead = 2;
  CudaDevice device(options);
  const StreamId s = device.make_stream("compute", 0);
  int done = 0;
  for (int i = 0; i < 10; ++i) {
    device.call(s, [&done] { ++done; });
    device.limit_run_ahead(s);
    EXPECT_GE(done, i - 1) << "after " << i + 1;
  }
  device.synchronize();
  EXPECT_EQ(done, 10);
}

}  // namespace
}  // namespace shardwright::exec
