// SPDX-License-Identifier: Apache-2.0
// What exec/device.h promises of memory, streams, events and failures, as tests of any device, and
// that operations with forms of their own are reached. (What operations compute is compared with
// references in tests/kernels.) Who implements it instantiates
// DeviceContract with devices of its own. One source of a test program includes this header.
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

/// An array in a device's memory.
template <class T>
class DeviceArray {
 public:
  DeviceArray(Device& device, StreamId stream, std::vector<T> values)
      : device_(device), stream_(stream), values_(std::move(values)) {
    memory_ = device.allocate(bytes());
    device.copy(stream, data(), values_.data(), bytes());
  }
  T* data() const { return static_cast<T*>(memory_->data()); }
  /// Waits for the device.
  std::vector<T> get() const {
    std::vector<T> values(values_.size());
    device_.copy(stream_, values.data(), data(), bytes());
    device_.synchronize();
    return values;
  }

 private:
  Bytes bytes() const { return static_cast<Bytes>(values_.size() * sizeof(T)); }

  Device& device_;
  StreamId stream_;
  std::vector<T> values_;  // copied from while the stream gets there
  std::unique_ptr<Allocation> memory_;
};

// 2^24 + 1 is 2^24 in fp32.
TEST_P(DeviceContract, FoldsInTheOrderThatIsAsked) {
  const StreamId s = stream("compute");
  const DeviceArray<float> a(device(), s, {0x1p24f}), b(device(), s, {1.0f});
  const DeviceArray<float> chain(device(), s, {-0x1p24f}), tree(device(), s, {-0x1p24f});
  const void* inputs[] = {a.data(), b.data(), b.data(), b.data()};
  device().fold(s, inputs, DType::kFp32, {chain.data(), DType::kFp32, 1}, false, SumOrder::kRanks);
  device().fold(s, inputs, DType::kFp32, {tree.data(), DType::kFp32, 1}, true, SumOrder::kTree);
  EXPECT_EQ(chain.get(), std::vector<float>{0x1p24f});
  EXPECT_EQ(tree.get(), std::vector<float>{2.0f});
}

TEST_P(DeviceContract, AVocabularyInPartsHasTheLossOfTheWhole) {
  const StreamId s = stream("compute");
  const std::vector<float> logits = {1, 2, 3, 4, 0, 0, 0, 0, 5, 5, 5, 7};
  const DeviceArray<float> whole(device(), s, logits), parted(device(), s, logits);
  const DeviceArray<std::int32_t> targets(device(), s, {0, kIgnoreTarget, 3});
  const DeviceArray<LossSums> expected(device(), s, {{}}), sums(device(), s, {{}});
  const DeviceArray<double> scratch(device(), s, {0, 0, 0});
  const DeviceArray<VocabularyPart> parts(device(), s, std::vector<VocabularyPart>(6));
  const double cap = 10.0;
  device().cross_entropy(s, {whole.data(), DType::kFp32, 3, 4}, targets.data(), cap, true,
                         expected.data(), scratch.data());
  const Matrix all(parted.data(), DType::kFp32, 3, 4);
  for (const std::int64_t p : {0, 1}) {
    device().vocabulary_statistics(s, all.col_range(2 * p, 2), targets.data(), 2 * p, cap,
                                   parts.data() + 3 * p);
  }
  for (const std::int64_t p : {0, 1}) {
    device().vocabulary_loss(s, all.col_range(2 * p, 2), targets.data(), 2 * p, cap, true,
                             {parts.data(), 2, 3}, p == 0 ? sums.data() : nullptr,
                             p == 0 ? scratch.data() : nullptr);
  }
  const std::vector<float> gradient = parted.get(), of_whole = whole.get();
  for (std::size_t i = 0; i < gradient.size(); ++i) EXPECT_NEAR(gradient[i], of_whole[i], 1e-6);
  EXPECT_NEAR(sums.get()[0].loss, expected.get()[0].loss, 1e-6);
  EXPECT_GT(sums.get()[0].loss, 2.0);
  EXPECT_EQ(sums.get()[0].tokens, 2);
}

TEST_P(DeviceContract, ARankHasSomeRowsOfATable) {
  const StreamId s = stream("compute");
  const DeviceArray<float> table(device(), s, {20, 30}), out(device(), s, {7, 7, 7});
  const DeviceArray<std::int32_t> tokens(device(), s, {3, 1, 2}),
      scratch(device(), s, {0, 0, 0, 0, 0, 0});
  const DeviceArray<float> d_out(device(), s, {5, 6, 8}), d_table(device(), s, {1, 1});
  device().embedding_forward(s, {table.data(), DType::kFp32, 2, 1}, 2, tokens.data(), 1.0, false,
                             {out.data(), DType::kFp32, 3, 1});
  device().embedding_backward(s, tokens.data(), {d_out.data(), DType::kFp32, 3, 1}, 1.0, true,
                              {d_table.data(), DType::kFp32, 2, 1}, 2, scratch.data());
  EXPECT_EQ(out.get(), (std::vector<float>{30, 0, 20}));
  EXPECT_TRUE(std::signbit(out.get()[1]));
  EXPECT_EQ(d_table.get(), (std::vector<float>{9, 6}));
}

// The right column of a 4 x 2 matrix, from its second row on.
TEST_P(DeviceContract, ColumnsAreRoundedByTheirPlaceInTheModel) {
  const StreamId s = stream("compute");
  const std::vector<kernels::BFloat16> ones(8, kernels::to_bf16(1.0f)), three(3, ones[0]);
  const std::vector<float> gradients(8, 1.0f);
  const DeviceArray<float> gradient(device(), s, gradients);
  const DeviceArray<kernels::BFloat16> whole(device(), s, ones), column(device(), s, three);
  const DeviceArray<float> m(device(), s, std::vector<float>(8)), v(device(), s, m.get());
  const DeviceArray<float> column_m(device(), s, m.get()), column_v(device(), s, m.get());
  const DeviceArray<StepTotals> totals(device(), s, {StepTotals{.scale = 1.0}});
  const auto update = [&](const UpdateSegment& segment, kernels::BFloat16* parameter, float* first,
                          float* second) {
    const std::int64_t size = segment.count;
    device().adamw(s, {.lr = 1e-3, .seed = 3}, totals.data(), {&segment, 1},
                   {gradient.data(), DType::kFp32, size}, {parameter, DType::kBf16, size},
                   {first, DType::kFp32, size}, {second, DType::kFp32, size});
    device().synchronize();
  };
  update({.count = 8}, whole.data(), m.data(), v.data());
  update({.count = 3, .first_index = 3, .row_begin = 0, .row_length = 1, .row_stride = 2},
         column.data(), column_m.data(), column_v.data());
  const auto all = whole.get(), some = column.get();
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(some[i], all[2 * i + 3]) << i;
  // Some went down by a rounding, some stayed.
  EXPECT_FALSE(some[0] == some[1] && some[1] == some[2]);
}

}  // namespace shardwright::exec::testing
