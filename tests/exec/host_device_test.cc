// SPDX-License-Identifier: Apache-2.0
#include "exec/host/host_device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <vector>

#include "kernels/bf16.h"
#include "sim/core/error.h"

namespace shardwright::exec {
namespace {

class HostDeviceModes : public ::testing::TestWithParam<StreamMode> {
 protected:
  kernels::host::Parallel parallel_{1};
};

TEST_P(HostDeviceModes, AStreamRunsItsWorkInOrder) {
  HostDevice device(parallel_, GetParam(), 3);
  const StreamId stream = device.make_stream("compute", 0);
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) device.call(stream, [&order, i] { order.push_back(i); });
  device.synchronize();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

// The value that crosses streams is unguarded: only the events order its accesses.
TEST_P(HostDeviceModes, EventsOrderStreams) {
  HostDevice device(parallel_, GetParam(), 4);
  const StreamId a = device.make_stream("a", 0);
  const StreamId b = device.make_stream("b", 0);
  const auto forth = device.make_event();
  const auto back = device.make_event();
  int value = 0;
  for (int i = 0; i < 50; ++i) {
    device.wait(a, *back);  // at first never recorded: no wait
    device.call(a, [&] { value = 2 * value + 1; });
    device.record(a, *forth);
    device.wait(b, *forth);
    device.call(b, [&] { value -= 1; });
    device.record(b, *back);
  }
  device.synchronize();
  EXPECT_EQ(value, 0);
}

// A wait means the record before it, not a later one of the same event.
TEST_P(HostDeviceModes, AWaitMeansTheLastRecordBeforeIt) {
  HostDevice device(parallel_, GetParam(), 5);
  const StreamId a = device.make_stream("a", 0);
  const StreamId b = device.make_stream("b", 0);
  const auto first = device.make_event();
  const auto second = device.make_event();
  device.record(a, *first);
  device.wait(b, *first);
  device.record(b, *second);
  device.wait(a, *second);  // would never end if b waited for the record below
  device.record(a, *first);
  device.synchronize();
}

TEST_P(HostDeviceModes, ReportsTheFirstFailureAndStopsWorking) {
  HostDevice device(parallel_, GetParam(), 6);
  const StreamId a = device.make_stream("a", 0);
  const StreamId b = device.make_stream("b", 0);
  const auto event = device.make_event();
  std::atomic<bool> ran{false};
  const auto work = [&] {
    device.call(a, [] { throw Error("first"); });
    device.call(a, [&] { ran = true; });
    device.record(a, *event);
    device.wait(b, *event);
    device.synchronize();
  };
  try {
    work();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
  EXPECT_FALSE(ran);
}

INSTANTIATE_TEST_SUITE_P(Modes, HostDeviceModes,
                         ::testing::Values(StreamMode::kInline, StreamMode::kThreads,
                                           StreamMode::kShuffled),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST(HostDevice, CountsItsMemory) {
  kernels::host::Parallel parallel(1);
  HostDevice device(parallel, StreamMode::kInline);
  {
    const auto first = device.allocate(1000);
    const auto second = device.allocate(24);
    EXPECT_EQ(device.allocated_bytes(), 1024);
  }
  const auto third = device.allocate(10);
  EXPECT_EQ(device.allocated_bytes(), 10);
  EXPECT_EQ(device.peak_allocated_bytes(), 1024);
}

TEST(HostDevice, PoisonIsNotANumberInBothTypes) {
  kernels::host::Parallel parallel(1);
  HostDevice device(parallel, StreamMode::kInline);
  const StreamId stream = device.make_stream("compute", 0);
  std::vector<float> wide(3, 1.0f);
  device.poison(stream, wide.data(), 12, DType::kFp32);
  for (const float x : wide) EXPECT_TRUE(std::isnan(x));
  std::vector<kernels::BFloat16> narrow(3);
  device.poison(stream, narrow.data(), 6, DType::kBf16);
  for (const auto x : narrow) EXPECT_TRUE(std::isnan(kernels::to_float(x)));
}

TEST(HostDevice, NamesItsModes) {
  for (const StreamMode mode : {StreamMode::kInline, StreamMode::kThreads, StreamMode::kShuffled}) {
    EXPECT_EQ(stream_mode_from(name_of(mode)), mode);
  }
  EXPECT_THROW(stream_mode_from("fibers"), Error);
}

}  // namespace
}  // namespace shardwright::exec
