// SPDX-License-Identifier: Apache-2.0
// What exec/device.h promises of memory, streams, events and failures, as tests of any device.
// (What operations compute is the contract of tests/kernels/contract.h.) Who implements it
// instantiates DeviceContract with devices of its own. One source of a test program includes this
// header.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <ostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "exec/device.h"
#include "kernels/bf16.h"

namespace shardwright::exec::testing {

struct DeviceCase {
  std::string name;
  std::function<std::unique_ptr<Device>()> make;
  /// Why there is none on this machine; empty where there is one.
  std::function<std::string()> missing = [] { return std::string(); };
};

inline void PrintTo(const DeviceCase& one, std::ostream* out) {
  *out << one.name;
}

class DeviceContract : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    if (const std::string why = GetParam().missing(); !why.empty()) GTEST_SKIP() << why;
    owner_ = GetParam().make();
  }
  Device& device() { return *owner_; }
  StreamId stream(const char* name) { return device().make_stream(name, 0); }

 private:
  std::unique_ptr<Device> owner_;
};

TEST_P(DeviceContract, CountsItsMemory) {
  {
    const auto first = device().allocate(1000);
    const auto second = device().allocate(24);
    EXPECT_EQ(device().allocated_bytes(), 1024);
  }
  const auto third = device().allocate(10);
  EXPECT_EQ(device().allocated_bytes(), 10);
  EXPECT_EQ(device().peak_allocated_bytes(), 1024);
}

TEST_P(DeviceContract, CopiesSmallAndLargeArraysBothWays) {
  const StreamId s = stream("compute");
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{3} << 20}) {
    const auto memory = device().allocate(static_cast<Bytes>(4 * count));
    std::vector<std::int32_t> in(count), out(count, -1);
    std::iota(in.begin(), in.end(), 7);
    device().copy(s, memory->data(), in.data(), static_cast<Bytes>(4 * count));
    device().copy(s, out.data(), memory->data(), static_cast<Bytes>(4 * count));
    device().synchronize();
    EXPECT_EQ(in, out) << count;
  }
}

TEST_P(DeviceContract, PoisonIsNotANumberInBothTypes) {
  const StreamId s = stream("compute");
  const auto memory = device().allocate(400);
  std::vector<float> wide(100, 1.0f);
  device().poison(s, memory->data(), 400, DType::kFp32);
  device().copy(s, wide.data(), memory->data(), 400);
  std::vector<kernels::BFloat16> narrow(200);
  device().poison(s, memory->data(), 400, DType::kBf16);
  device().copy(s, narrow.data(), memory->data(), 400);
  device().synchronize();
  for (const float x : wide) EXPECT_TRUE(std::isnan(x));
  for (const auto x : narrow) EXPECT_TRUE(std::isnan(kernels::to_float(x)));
}

TEST_P(DeviceContract, AStreamRunsItsWorkInOrder) {
  const StreamId s = stream("compute");
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) device().call(s, [&order, i] { order.push_back(i); });
  device().synchronize();
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

// The value that crosses streams is unguarded: only the events order its accesses.
TEST_P(DeviceContract, EventsOrderStreams) {
  const StreamId a = stream("a");
  const StreamId b = stream("b");
  const auto forth = device().make_event();
  const auto back = device().make_event();
  int value = 0;
  for (int i = 0; i < 50; ++i) {
    device().wait(a, *back);  // at first never recorded: no wait
    device().call(a, [&] { value = 2 * value + 1; });
    device().record(a, *forth);
    device().wait(b, *forth);
    device().call(b, [&] { value -= 1; });
    device().record(b, *back);
  }
  device().synchronize();
  EXPECT_EQ(value, 0);
}

TEST_P(DeviceContract, EventsOrderWhatStreamsCopy) {
  const StreamId first = stream("compute");
  const StreamId second = stream("communication");
  const auto event = device().make_event();
  const auto memory = device().allocate(8);
  auto* at = static_cast<std::int32_t*>(memory->data());
  const std::int32_t seven = 7;
  std::int32_t got = 0;
  device().zero(first, at, 8);
  device().copy(first, at, &seven, 4);
  device().record(first, *event);
  device().wait(second, *event);
  device().copy(second, at + 1, at, 4);
  device().copy(second, &got, at + 1, 4);
  device().synchronize();
  EXPECT_EQ(got, 7);
}

// A wait means the record before it, not a later one of the same event.
TEST_P(DeviceContract, AWaitMeansTheLastRecordBeforeIt) {
  const StreamId a = stream("a");
  const StreamId b = stream("b");
  const auto first = device().make_event();
  const auto second = device().make_event();
  bool ended = false;
  device().record(a, *first);
  device().wait(b, *first);
  device().record(b, *second);
  device().wait(a, *second);  // would never end if b waited for the record below
  device().record(a, *first);
  device().call(a, [&] { ended = true; });
  device().synchronize();
  EXPECT_TRUE(ended);
}

TEST_P(DeviceContract, TimestampsAreInTheOrderOfStreams) {
  const StreamId first = stream("compute");
  const StreamId second = stream("communication");
  const auto event = device().make_event();
  const auto memory = device().allocate(1024);
  for (int round = 0; round < 3; ++round) {
    std::vector<Nanoseconds> at(3, 0);
    device().timestamp(first, &at[0]);
    device().zero(first, memory->data(), 1024);
    device().timestamp(first, &at[1]);
    device().record(first, *event);
    device().wait(second, *event);
    device().timestamp(second, &at[2]);
    device().synchronize();
    EXPECT_GT(at[0], 0);
    EXPECT_LE(at[0], at[1]);
    EXPECT_LE(at[1], at[2]);
  }
}

TEST_P(DeviceContract, TheFirstFailureStopsWhatComesLaterAndIsThrown) {
  const StreamId s = stream("compute");
  const StreamId other = stream("communication");
  const auto event = device().make_event();
  std::atomic<bool> ran{false};
  const auto expect_failure = [&] {
    EXPECT_THAT([&] { device().synchronize(); },
                ::testing::ThrowsMessage<std::runtime_error>("first"));
  };
  device().call(s, [] { throw std::runtime_error("first"); });
  device().call(s, [&] { ran = true; });
  device().call(s, [] { throw std::runtime_error("second"); });
  device().record(s, *event);
  device().wait(other, *event);
  expect_failure();
  device().call(s, [&] { ran = true; });
  expect_failure();
  EXPECT_FALSE(ran);
  device().drain();
}

}  // namespace shardwright::exec::testing
