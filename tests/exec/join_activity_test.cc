// SPDX-License-Identifier: Apache-2.0
// Guards exec/trace: records of a profiler become the spans of the right rank, operation and
// stream, on the right clock.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "exec/trace/activity.h"
#include "kernels/random.h"
#include "tests/support/not_empty.h"

namespace shardwright::exec {
namespace {

using ::testing::ElementsAre;

Activity record(ActivityKind kind, const std::string& name, std::uint64_t begin, std::uint64_t end,
                std::uint32_t correlation, std::uint32_t stream = 0, std::uint32_t thread = 0) {
  Activity activity;
  activity.kind = kind;
  activity.name = name;
  activity.begin_ns = begin;
  activity.end_ns = end;
  activity.correlation = correlation;
  activity.stream = stream;
  activity.thread = thread;
  return activity;
}

const ClockMap kSameClock({1000, 1000, 0}, {2'000'000'000, 2'000'000'000, 0});

/// Ranks 0 and 1 with streams 7 and 8, 17 and 18.
std::unordered_map<std::int32_t, RankStreams> two_ranks() {
  return {{0, {{"compute", "communication"}, {7, 8}}},
          {1, {{"compute", "communication"}, {17, 18}}}};
}

TEST(OpTag, CarriesRankAndOperationAndKnowsForeignIds) {
  for (const OpTag tag : {OpTag{0, 0}, OpTag{3, 123456}, OpTag{70000, 268435455}}) {
    const auto back = op_of_tag(op_tag(tag));
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(back->rank, tag.rank);
    EXPECT_EQ(back->op, tag.op);
  }
  for (const std::uint64_t id : {0ull, 1ull, 99ull, 1ull << 40, ~0ull}) {
    EXPECT_FALSE(op_of_tag(id).has_value()) << id;
  }
}

TEST(KernelName, IsForPeople) {
  EXPECT_EQ(kernel_name("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
            "ncclDevKernel_AllGather_RING_LL");
  EXPECT_EQ(kernel_name("_ZN11shardwright7kernels4cuda12_GLOBAL__N_111cast_kernelIfEEvPKT_m"),
            "cast_kernel<float>");
  EXPECT_EQ(kernel_name("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"),
            "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT");
  EXPECT_EQ(kernel_name("void cutlass::Kernel2<a<(b)1>, int>(int)"),
            "cutlass::Kernel2<a<(b)1>, int>");
  EXPECT_EQ(kernel_name(""), "");
  EXPECT_EQ(kernel_name(std::string(500, 'x')).size(), 123U);
  EXPECT_TRUE(is_nccl_kernel("ncclDevKernel_ReduceScatter_Sum_f32_RING_SIMPLE(x)"));
  EXPECT_TRUE(is_nccl_kernel("ncclSymkDevKernel_AllGather_LL"));
  EXPECT_FALSE(is_nccl_kernel("cast_kernel"));
  EXPECT_EQ(call_name("cudaLaunchKernel_v7000"), "cudaLaunchKernel");
  EXPECT_EQ(call_name("cuLaunchKernelEx"), "cuLaunchKernelEx");
  EXPECT_EQ(call_name("cuEvent_view"), "cuEvent_view");
}

// Any bytes may stand where a name is expected.
TEST(KernelName, TakesAnything) {
  const kernels::RandomStream random{3, kernels::RandomSite::kSynthetic, 0};
  std::uint64_t draws = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string name = "_ZN11shardwright7kernels4cuda11cast_kernelIfEEvPKT_m";
    for (int change = 0; change < 4; ++change) {
      const std::size_t at = random.below(draws++, name.size());
      name[at] = static_cast<char>(1 + random.below(draws++, 255));
    }
    name.resize(random.below(draws++, name.size() + 1));
    EXPECT_LE(kernel_name(name).size(), 123U);
    call_name(name);
  }
}

TEST(ClockMap, FollowsALineAndDistrustsShortOnes) {
  // The other clock began elsewhere and runs 20 millionths slower.
  const ClockMap map({5'000'000'000'000, 100'000'000, 10}, {5'000'999'980'000, 1'100'000'000, 10});
  EXPECT_EQ(map.to_steady(5'000'000'000'000), 100'000'000);
  EXPECT_NEAR(static_cast<double>(map.to_steady(5'000'499'990'000)), 600'000'000, 2);
  EXPECT_NEAR(static_cast<double>(map.to_steady(4'999'999'000'000)), 98'999'980, 2);
  // Readings that lie close together or make no sense say nothing about the rate.
  for (const std::uint64_t last : {1'000'100ull, 3'000'000'000ull}) {
    EXPECT_EQ(ClockMap({1'000'000, 50, 5}, {last, 90'000, 5}).to_steady(1'500'000), 500'050);
  }
}

TEST(ClockMap, ReadingsKeepTheNarrowest) {
  Nanoseconds now = 0;
  int reads = 0;
  const ClockReading reading = read_clocks([&] { return now; },
                                           [&] {
                                             // The fifth reading is the quickest.
                                             now += ++reads == 5 ? 20 : 1000;
                                             return static_cast<std::uint64_t>(now) + 7'000;
                                           });
  EXPECT_EQ(reading.uncertainty_ns, 10);
  EXPECT_EQ(static_cast<Nanoseconds>(reading.other_ns) - 7'000, 4 * 1000 + 20);
  EXPECT_EQ(reading.steady_ns, 4 * 1000 + 10);
}

/// Two operations of rank 0, one of them two kernels, a collective of rank 1, a copy and a kernel
/// that no operation launched.
ActivityLog small_log() {
  ActivityLog log;
  log.tags = {
      {1, op_tag({0, 5})}, {2, op_tag({0, 5})}, {3, op_tag({0, 6})}, {4, op_tag({1, 5})}, {9, 77}};
  log.activities = {
      record(ActivityKind::kCall, "cudaLaunchKernel_v7000", 100, 105, 1, 0, 50),
      record(ActivityKind::kKernel, "gemm", 200, 300, 1, 7),
      record(ActivityKind::kKernel, "epilogue", 300, 320, 2, 7),
      record(ActivityKind::kKernel, "ncclDevKernel_AllGather_RING_LL(x)", 210, 400, 3, 8),
      record(ActivityKind::kCall, "cudaLaunchKernelExC_v11060", 101, 120, 4, 0, 51),
      record(ActivityKind::kKernel, "norm", 205, 280, 4, 17),
      record(ActivityKind::kCopy, "copy device to pinned", 410, 412, 8, 17),
      record(ActivityKind::kKernel, "foreign", 420, 430, 9, 99),
      record(ActivityKind::kCall, "cudaGetLastError_v3020", 130, 131, 0, 0, 50),
      record(ActivityKind::kCall, "cudaStreamSynchronize_v3020", 130, 9000, 0, 0, 51),
      record(ActivityKind::kWait, "host waits for a stream", 130, 9000, 0, 7),
      record(ActivityKind::kOverhead, "buffer flush", 500, 700, 0)};
  log.dropped = 3;
  return log;
}

// NCCL passes messages on streams beside the schedule's.
TEST(JoinActivity, AStreamHasTheTrackOfItsName) {
  ActivityLog log;
  log.tags = {{1, op_tag({0, 5})}, {2, op_tag({0, 6})}};
  log.activities = {record(ActivityKind::kKernel, "ncclDevKernel_SendRecv", 200, 300, 1, 9),
                    record(ActivityKind::kKernel, "ncclDevKernel_SendRecv", 210, 310, 2, 8)};
  JoinSummary summary;
  const TracedStep step = join_activity(
      log, kSameClock, 0, {{0, {{"compute", "pipeline", "pipeline"}, {7, 8, 9}}}}, {}, summary);
  EXPECT_THAT(step.streams, ElementsAre("compute", "pipeline"));
  ASSERT_EQ(step.spans.size(), 2u);
  EXPECT_EQ(step.spans[0].stream, 1);
  EXPECT_EQ(step.spans[1].stream, 1);
}

TEST(JoinActivity, GivesEveryRecordToItsRankAndOperation) {
  const ActivityLog log = small_log();
  JoinSummary first, second;
  const TracedStep zero = join_activity(log, kSameClock, 0, two_ranks(), {}, first);
  const TracedStep one = join_activity(log, kSameClock, 1, two_ranks(), {}, second);

  const auto told = [](const TracedStep& step) {
    std::vector<std::tuple<OpId, std::string, std::string, Nanoseconds, Nanoseconds>> rows;
    for (const Span& span : step.spans) {
      rows.emplace_back(span.id, step.streams.at(span.stream),
                        step.names.at(static_cast<std::size_t>(span.name)), span.begin_ns,
                        span.end_ns);
    }
    return rows;
  };
  EXPECT_THAT(
      told(zero),
      ElementsAre(std::tuple(5, "compute", "gemm", 200, 300),
                  std::tuple(6, "communication", "ncclDevKernel_AllGather_RING_LL", 210, 400),
                  std::tuple(5, "compute", "epilogue", 300, 320),
                  std::tuple(-1, "stream 99 of the driver", "foreign", 420, 430)));
  EXPECT_THAT(told(one),
              ElementsAre(std::tuple(5, "compute", "norm", 205, 280),
                          std::tuple(-1, "compute", "copy device to pinned, 0 bytes", 410, 412)));
  for (const Span& span : not_empty(one.spans)) EXPECT_EQ(span.rank, 1);

  const auto host = [](const TracedStep& step) {
    std::vector<std::pair<OpId, std::string>> rows;
    for (const Span& span : not_empty(step.host)) {
      rows.emplace_back(span.id, step.names.at(static_cast<std::size_t>(span.name)));
    }
    return rows;
  };
  EXPECT_THAT(host(zero), ElementsAre(std::pair(5, "cudaLaunchKernel"),
                                      std::pair(-1, "profiler: buffer flush")));
  // A thread belongs to the rank whose operations it launches.
  EXPECT_THAT(host(one), ElementsAre(std::pair(5, "cudaLaunchKernelExC"),
                                     std::pair(-1, "cudaStreamSynchronize")));
  EXPECT_EQ(first.kernels, 4);
  EXPECT_EQ(first.nccl_kernels, 1);
  EXPECT_EQ(first.without_op, 1);
  EXPECT_EQ(first.dropped, 3);
  EXPECT_EQ(first.overhead_ns, 200);
  EXPECT_EQ(second.copies, 1);
  EXPECT_EQ(second.without_op, 1);
  EXPECT_EQ(second.dropped, 0) << "counted once";
  EXPECT_EQ(describe(first, 1),
            "1 step recorded kernel by kernel: 4 kernels (1 of NCCL), 0 copies, 2 calls; 1 of them "
            "on the device belong to no operation; the profiler counts 0.000 ms of overhead in 1 "
            "records; 3 records were dropped, so the trace has holes");
}

// NCCL launches from a thread of its own, while the host waits within the operation.
TEST(JoinActivity, AKernelOfALibrarysThreadBelongsToTheOperationBeingIssued) {
  ActivityLog log;
  log.activities = {
      record(ActivityKind::kCall, "cuLaunchKernelEx", 1150, 1160, 1, 0, 77),
      record(ActivityKind::kKernel, "ncclDevKernel_AllGather_RING_LL", 1300, 1400, 1, 8),
      record(ActivityKind::kCall, "cuLaunchKernelEx", 1250, 1260, 2, 0, 77),
      record(ActivityKind::kKernel, "between", 1401, 1402, 2, 8),
      record(ActivityKind::kKernel, "without a call", 1403, 1404, 3, 8)};
  const std::vector<IssuedOp> issued{{10, 1000, 1090}, {11, 1100, 1200}, {12, 1300, 1400}};
  JoinSummary summary;
  const TracedStep step = join_activity(log, kSameClock, 0, two_ranks(), issued, summary);
  ASSERT_EQ(step.spans.size(), 3U);
  EXPECT_EQ(step.spans[0].id, 11);
  EXPECT_EQ(step.spans[1].id, -1);
  EXPECT_EQ(step.spans[2].id, -1);
  EXPECT_EQ(summary.without_op, 2);
}

TEST(JoinActivity, RecordsThatWereCutOffAreCountedAndLeftOut) {
  ActivityLog log;
  log.activities = {record(ActivityKind::kKernel, "cut", 200, 0, 1, 7)};
  JoinSummary summary;
  EXPECT_TRUE(join_activity(log, kSameClock, 0, two_ranks(), {}, summary).spans.empty());
  EXPECT_EQ(summary.unread, 1);
  EXPECT_EQ(summary.kernels, 0);
}

TEST(JoinActivity, TakesAnyNumberOfForeignStreams) {
  ActivityLog log;
  for (std::uint32_t i = 0; i < 400; ++i) {
    log.activities.push_back(record(ActivityKind::kKernel, "k", 10 + i, 20 + i, 0, 1000 + i));
  }
  JoinSummary summary;
  const TracedStep step = join_activity(log, kSameClock, 0, two_ranks(), {}, summary);
  EXPECT_EQ(step.spans.size(), 400U);
  EXPECT_EQ(step.streams.size(), 255U);
}

TEST(NameTable, TurnsIndicesOfOneTimelineIntoAnothers) {
  std::vector<std::string> names{"a", "b"};
  NameTable table(names);
  std::vector<Span> spans(4);
  spans[0].name = 0;
  spans[1].name = 1;
  spans[2].name = 9;
  table.rename(spans, {"b", "c"});
  EXPECT_THAT(names, ElementsAre("a", "b", "c"));
  EXPECT_EQ(spans[0].name, 1);
  EXPECT_EQ(spans[1].name, 2);
  EXPECT_EQ(spans[2].name, 9);
  EXPECT_EQ(spans[3].name, -1);
}

}  // namespace
}  // namespace shardwright::exec
