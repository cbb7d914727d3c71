// SPDX-License-Identifier: Apache-2.0
// Guards exec/cupti with the real library: its records are read as they lie in its buffers, and
// where it refuses the reason is one sentence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "exec/cupti/cupti_tracer.h"
#include "kernels/random.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {
namespace {

class Buffer {
 public:
  template <class Record>
  void append(const Record& record) {
    std::memcpy(reinterpret_cast<std::uint8_t*>(words_.data()) + used_, &record, sizeof record);
    used_ += sizeof record;
  }
  std::uint8_t* data() { return reinterpret_cast<std::uint8_t*>(words_.data()); }
  std::size_t used() const { return used_; }

 private:
  std::vector<std::uint64_t> words_ = std::vector<std::uint64_t>(4096);
  std::size_t used_ = 0;
};

Buffer one_of_each() {
  Buffer buffer;
  CuptiKernel kernel{};
  kernel.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  kernel.name = "_Z4gemmv";
  kernel.start = 100;
  kernel.end = 250;
  kernel.correlationId = 7;
  kernel.streamId = 13;
  buffer.append(kernel);
  CUpti_ActivityExternalCorrelation external{};
  external.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
  external.externalKind = kExternalKind;
  external.externalId = op_tag({2, 99});
  external.correlationId = 7;
  buffer.append(external);
  external.externalKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1;  // somebody else's
  external.correlationId = 8;
  buffer.append(external);
  CuptiCopy copy{};
  copy.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
  copy.srcKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  copy.dstKind = CUPTI_ACTIVITY_MEMORY_KIND_PINNED;
  copy.bytes = 4096;
  copy.start = 300;
  copy.end = 310;
  copy.correlationId = 9;
  copy.streamId = 14;
  buffer.append(copy);
  CuptiSet set{};
  set.kind = CUPTI_ACTIVITY_KIND_MEMSET;
  set.bytes = 64;
  set.start = 320;
  set.end = 321;
  buffer.append(set);
  CUpti_ActivityAPI call{};
  call.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
  call.cbid = 211;
  call.start = 90;
  call.end = 95;
  call.correlationId = 7;
  call.threadId = 4242;
  buffer.append(call);
  CuptiOverhead overhead{};
  overhead.kind = CUPTI_ACTIVITY_KIND_OVERHEAD;
  overhead.overheadKind = CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH;
  overhead.start = 400;
  overhead.end = 450;
  buffer.append(overhead);
  CuptiWait wait{};
  wait.kind = CUPTI_ACTIVITY_KIND_SYNCHRONIZATION;
  wait.type = CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE;
  wait.start = 500;
  wait.end = 900;
  buffer.append(wait);
  return buffer;
}

TEST(CuptiRecords, AreReadAsTheyLieInTheBuffer) {
  Buffer buffer = one_of_each();
  ActivityLog log;
  read_records(buffer.data(), buffer.used(), log);
  ASSERT_EQ(log.activities.size(), 6U);
  const Activity& kernel = log.activities[0];
  EXPECT_EQ(kernel.kind, ActivityKind::kKernel);
  EXPECT_EQ(kernel_name(kernel.name), "gemm");
  EXPECT_EQ(kernel.begin_ns, 100U);
  EXPECT_EQ(kernel.end_ns, 250U);
  EXPECT_EQ(kernel.correlation, 7U);
  EXPECT_EQ(kernel.stream, 13U);
  const Activity& copy = log.activities[1];
  EXPECT_EQ(copy.kind, ActivityKind::kCopy);
  EXPECT_EQ(copy.name, "copy device to pinned");
  EXPECT_EQ(copy.bytes, 4096U);
  EXPECT_EQ(copy.stream, 14U);
  EXPECT_EQ(log.activities[2].kind, ActivityKind::kSet);
  EXPECT_EQ(log.activities[2].bytes, 64U);
  EXPECT_EQ(log.activities[3].kind, ActivityKind::kCall);
  EXPECT_EQ(log.activities[3].thread, 4242U);
  EXPECT_EQ(log.activities[4].kind, ActivityKind::kOverhead);
  EXPECT_EQ(log.activities[4].name, "buffer flush");
  EXPECT_EQ(log.activities[5].kind, ActivityKind::kWait);
  ASSERT_EQ(log.tags.size(), 1U);
  EXPECT_EQ(log.tags.at(7), op_tag({2, 99}));
  EXPECT_EQ(log.unread, 0);
}

TEST(CuptiRecords, ABufferThatEndsEarlyOrIsUnknownIsCounted) {
  ActivityLog log;
  read_records(nullptr, 0, log);
  EXPECT_EQ(log.unread, 0);
  Buffer buffer = one_of_each();
  CUpti_Activity foreign{};
  foreign.kind = static_cast<CUpti_ActivityKind>(0x7000);
  Buffer unknown;
  unknown.append(foreign);
  read_records(unknown.data(), unknown.used(), log);
  EXPECT_EQ(log.unread, 1);
  EXPECT_TRUE(log.activities.empty());
}

TEST(CuptiSession, SaysWhyItCannotTrace) {
  std::uint32_t version = 0;
  ASSERT_EQ(cuptiGetVersion(&version), CUPTI_SUCCESS) << "the library itself is there";
  if (cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == CUPTI_SUCCESS) {
    cuptiActivityDisable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    GTEST_SKIP() << "there is a driver, so CUPTI does not refuse";
  }
  for (int round = 0; round < 2; ++round) {
    try {
      const CuptiSession session(1);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kMissingDevice);
      EXPECT_THAT(error.what(), ::testing::StartsWith("kernels cannot be traced: cuptiSubscribe "
                                                      "answers CUPTI_ERROR_"));
    }
  }
}

}  // namespace
}  // namespace shardwright::exec
