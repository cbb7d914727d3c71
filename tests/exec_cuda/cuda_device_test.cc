// SPDX-License-Identifier: Apache-2.0
// What exec/device.h promises, on CUDA: order, failure, copies, clocks.
#include "exec/cuda/cuda_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "sim/core/error.h"
#include "tests/exec_cuda/fixture.h"

namespace shardwright::exec {
namespace {

using namespace testing;
using ::testing::HasSubstr;

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

TEST_F(CudaDeviceTest, CountsItsMemory) {
  CudaDevice device;
  {
    const auto first = device.allocate(1000);
    const auto second = device.allocate(24);
    EXPECT_EQ(device.allocated_bytes(), 1024);
  }
  const auto third = device.allocate(10);
  EXPECT_EQ(device.allocated_bytes(), 10);
  EXPECT_EQ(device.peak_allocated_bytes(), 1024);
}

TEST_F(CudaDeviceTest, SaysHowMuchMemoryWasAsked) {
  CudaDevice device;
  EXPECT_THAT(message_of([&] { device.allocate(Bytes{1} << 50); }),
              HasSubstr("1125899906842624 bytes of GPU memory"));
}

TEST_F(CudaDeviceTest, CopiesSmallAndLargeArraysBothWays) {
  CudaDevice device;
  const StreamId s = device.make_stream("compute", 0);
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{3} << 20}) {
    const auto memory = device.allocate(static_cast<Bytes>(4 * count));
    std::vector<std::int32_t> in(count), out(count, -1);
    std::iota(in.begin(), in.end(), 7);
    device.copy(s, memory->data(), in.data(), static_cast<Bytes>(4 * count));
    device.copy(s, out.data(), memory->data(), static_cast<Bytes>(4 * count));
    device.synchronize();
    EXPECT_EQ(in, out) << count;
  }
}

TEST_F(CudaDeviceTest, StreamsWaitForEvents) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    use_order(seed);
    CudaDevice device;
    const StreamId first = device.make_stream("compute", 0);
    const StreamId second = device.make_stream("communication", -1);
    const auto event = device.make_event();
    const auto never = device.make_event();
    const auto memory = device.allocate(8);
    auto* at = static_cast<std::int32_t*>(memory->data());
    const std::int32_t seven = 7;
    std::int32_t got = 0;
    device.zero(first, at, 8);
    device.copy(first, at, &seven, 4);
    device.record(first, *event);
    device.wait(second, *never);
    device.wait(second, *event);
    device.copy(second, at + 1, at, 4);
    device.copy(second, &got, at + 1, 4);
    device.synchronize();
    EXPECT_EQ(got, 7) << seed;
  }
}

TEST_F(CudaDeviceTest, RunsFunctionsOfTheHostInOrder) {
  CudaDevice device;
  const StreamId s = device.make_stream("compute", 0);
  std::vector<int> order;
  for (int i = 0; i < 20; ++i) device.call(s, [&order, i] { order.push_back(i); });
  device.synchronize();
  std::vector<int> expected(20);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST_F(CudaDeviceTest, AFailureStopsWhatComesLaterAndIsThrownOnce) {
  CudaDevice device;
  const StreamId s = device.make_stream("compute", 0);
  const StreamId other = device.make_stream("communication", 0);
  const auto event = device.make_event();
  bool ran = false;
  device.call(s, [] { throw std::runtime_error("the host's own"); });
  device.call(s, [&] { ran = true; });
  device.record(s, *event);
  device.wait(other, *event);
  EXPECT_THROW(device.synchronize(), std::runtime_error);
  device.call(s, [&] { ran = true; });
  EXPECT_THROW(device.synchronize(), std::runtime_error);
  EXPECT_FALSE(ran);
  device.drain();
}

TEST_F(CudaDeviceTest, TimestampsAreInOrderAndNearTheHostsClock) {
  CudaDevice device;
  const StreamId first = device.make_stream("compute", 0);
  const StreamId second = device.make_stream("communication", -1);
  const auto event = device.make_event();
  const auto now = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  const auto memory = device.allocate(1024);
  for (int round = 0; round < 3; ++round) {
    std::vector<Nanoseconds> at(3, 0);
    const Nanoseconds begin = now();
    device.timestamp(first, &at[0]);
    device.zero(first, memory->data(), 1024);
    device.timestamp(first, &at[1]);
    device.record(first, *event);
    device.wait(second, *event);
    device.timestamp(second, &at[2]);
    device.synchronize();
    EXPECT_LE(at[0], at[1]);
    EXPECT_LE(at[1], at[2]);
    constexpr Nanoseconds kSlack = 50'000'000;
    EXPECT_GT(at[0], begin - kSlack);
    EXPECT_LT(at[2], now() + kSlack);
  }
}

TEST_F(CudaDeviceTest, PoisonIsNotANumber) {
  CudaDevice device;
  const StreamId s = device.make_stream("compute", 0);
  const auto memory = device.allocate(400);
  std::vector<float> values(100);
  device.poison(s, memory->data(), 400, DType::kFp32);
  device.copy(s, values.data(), memory->data(), 400);
  device.synchronize();
  for (const float value : values) EXPECT_TRUE(std::isnan(value));
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
