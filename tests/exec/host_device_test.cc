// SPDX-License-Identifier: Apache-2.0
#include "exec/host/host_device.h"

#include <chrono>
#include <future>
#include <string>

#include "sim/core/base/error.h"
#include "tests/exec/device_contract.h"
#include "tests/support/parameter_name.h"

namespace shardwright::exec {
namespace {

using namespace testing;

constexpr StreamMode kModes[] = {StreamMode::kInline, StreamMode::kThreads, StreamMode::kShuffled};

std::vector<DeviceCase> hosts() {
  static kernels::host::Parallel parallel(1);
  std::vector<DeviceCase> all;
  for (const StreamMode mode : kModes) {
    all.push_back({std::string(name_of(mode)),
                   [mode] { return std::make_unique<HostDevice>(parallel, mode, 3); }});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceContract, ::testing::ValuesIn(hosts()), parameter_name);

// Whoever waited for it would wait for ever.
TEST(HostDevice, AnEventHasPassedWhicheverOfItsRecordsIsDoneFirst) {
  kernels::host::Parallel parallel(1);
  HostDevice device(parallel, StreamMode::kThreads);
  const StreamId late = device.make_stream("late", 0), early = device.make_stream("early", 0);
  const auto event = device.make_event();
  std::promise<void> done;
  device.call(late, [&] { done.get_future().wait(); });
  device.record(late, *event);
  device.record(early, *event);
  device.call(early, [&] { done.set_value(); });
  device.synchronize();
  EXPECT_TRUE(event->has_passed());
}

TEST(HostDevice, WhoWaitsForARecordIsNotServedByALaterOneOfAnotherStream) {
  kernels::host::Parallel parallel(1);
  HostDevice device(parallel, StreamMode::kThreads);
  const StreamId late = device.make_stream("late", 0), early = device.make_stream("early", 0),
                 third = device.make_stream("third", 0);
  const auto event = device.make_event();
  std::promise<void> may_end, recorded, went_on;
  device.call(late, [&] { may_end.get_future().wait(); });
  device.record(late, *event);
  device.wait(third, *event);
  device.call(third, [&] { went_on.set_value(); });
  device.record(early, *event);
  device.call(early, [&] { recorded.set_value(); });
  recorded.get_future().wait();
  const std::future<void> went = went_on.get_future();
  EXPECT_EQ(went.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  may_end.set_value();
  device.synchronize();
  EXPECT_EQ(went.wait_for(std::chrono::seconds(0)), std::future_status::ready);
}

TEST(HostDevice, NamesItsModes) {
  for (const StreamMode mode : kModes) EXPECT_EQ(stream_mode_from(name_of(mode)), mode);
  EXPECT_THROW(stream_mode_from("fibers"), Error);
}

}  // namespace
}  // namespace shardwright::exec
