// SPDX-License-Identifier: Apache-2.0
// Guards exec/cupti's session and tracer on a fake CUPTI: what is switched on when, whose records
// are whose, many buffers, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "exec/cupti/cupti_tracer.h"
#include "sim/core/base/error.h"
#include "tests/exec_cupti/fake_cupti.h"

namespace shardwright::exec {
namespace {

using namespace shardwright::testing;

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

StreamsOfRank streams_of(int rank) {
  return [rank] {
    const auto stream = [&](int i) {
      return reinterpret_cast<cudaStream_t>(static_cast<std::uintptr_t>(10 * rank + i));
    };
    return std::vector<std::pair<std::string, cudaStream_t>>{{"compute", stream(1)},
                                                             {"communication", stream(2)}};
  };
}

/// The launches of one step of a rank: three operations of two kernels each.
void run_step(CuptiTracer& tracer, int rank, std::int64_t at) {
  for (OpId op = 0; op < 3; ++op) {
    tracer.begin_op(op);
    const auto compute = static_cast<std::uint32_t>(10 * rank + 1);
    fake_launch("_Z4gemmv", compute, at + 100 * op + 20, at + 100 * op + 60);
    fake_launch("ncclDevKernel_AllGather_RING_LL(x)", compute + 1, at + 100 * op + 70,
                at + 100 * op + 90);
    tracer.end_op();
  }
  fake_launch("_Z6totalsv", static_cast<std::uint32_t>(10 * rank + 1), at + 400, at + 410);
}

TEST(CuptiTracer, RecordsTheStepsItWatchesAndNoOthers) {
  reset_fake_cupti();
  CuptiSession session(1);
  EXPECT_TRUE(enabled_kinds().empty()) << "off until a step is watched";
  CuptiTracer tracer(session, 0, 3, 2, streams_of(0));
  for (int step = 1; step <= 6; ++step) {
    const bool watches = tracer.begin_step(step);
    EXPECT_EQ(watches, step == 3 || step == 4);
    EXPECT_EQ(enabled_kinds().size(), step >= 2 && step <= 4 ? 9U : 0U) << "step " << step;
    const std::int64_t at = now();
    run_step(tracer, 0, at);
    if (!watches) continue;
    const TracedStep seen = tracer.take_step();
    EXPECT_TRUE(enabled_kinds().empty());
    ASSERT_EQ(seen.spans.size(), 7U) << "nothing of the step in which CUPTI prepared itself";
    EXPECT_EQ(seen.spans[0].id, 0);
    EXPECT_EQ(seen.spans[0].stream, 0);
    EXPECT_NEAR(static_cast<double>(seen.spans[0].begin_ns - at), 20, 2000) << "the host's clock";
    EXPECT_EQ(seen.spans[0].end_ns - seen.spans[0].begin_ns, 40);
    EXPECT_EQ(seen.spans[1].id, 0);
    EXPECT_EQ(seen.spans[1].stream, 1);
    EXPECT_EQ(seen.spans[6].id, -1);
    EXPECT_THAT(seen.names, ::testing::Contains("gemm"));
    EXPECT_EQ(seen.host.size(), 7U);
  }
  EXPECT_THAT(tracer.report(),
              ::testing::StartsWith("2 steps recorded kernel by kernel: 14 kernels (6 of NCCL)"));
}

TEST(CuptiTracer, TheFirstStepOfARunCanBeWatched) {
  reset_fake_cupti();
  CuptiSession session(1);
  CuptiTracer tracer(session, 0, 1, 1, streams_of(0));
  EXPECT_FALSE(tracer.begin_step(0)) << "an evaluation";
  EXPECT_TRUE(enabled_kinds().empty());
  EXPECT_TRUE(tracer.begin_step(1));
  run_step(tracer, 0, now());
  EXPECT_EQ(tracer.take_step().spans.size(), 7U);
  EXPECT_FALSE(tracer.begin_step(2));
}

TEST(CuptiTracer, AnEvaluationEndsThePreparation) {
  reset_fake_cupti();
  CuptiSession session(1);
  CuptiTracer tracer(session, 0, 3, 1, streams_of(0));
  EXPECT_FALSE(tracer.begin_step(2));
  EXPECT_FALSE(enabled_kinds().empty());
  EXPECT_FALSE(tracer.begin_step(0));
  EXPECT_TRUE(enabled_kinds().empty());
  EXPECT_TRUE(tracer.begin_step(3));
  EXPECT_TRUE(tracer.take_step().spans.empty());
}

TEST(CuptiTracer, RanksThatAreThreadsShareTheSession) {
  reset_fake_cupti();
  constexpr int kRanks = 4;
  CuptiSession session(kRanks);
  std::vector<std::vector<TracedStep>> seen(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      CuptiTracer tracer(session, rank, 2, 3, streams_of(rank));
      for (int step = 1; step <= 5; ++step) {
        std::this_thread::sleep_for(std::chrono::milliseconds(rank * (step % 2)));
        const bool watches = tracer.begin_step(step);
        run_step(tracer, rank, now());
        if (watches) seen[static_cast<std::size_t>(rank)].push_back(tracer.take_step());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(switched_on(), 1 + 4) << "when the session began, and once for each of four steps";
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(seen[static_cast<std::size_t>(rank)].size(), 3U);
    for (const TracedStep& step : seen[static_cast<std::size_t>(rank)]) {
      EXPECT_EQ(step.spans.size(), 7U) << "rank " << rank;
      for (const Span& span : step.spans) {
        EXPECT_EQ(span.rank, rank);
        EXPECT_LT(span.stream, 2);
      }
    }
  }
}

// A rank that ends its step long after the others (its host was busy) finds it collected.
TEST(CuptiSession, ARankThatIsLateEndsNothing) {
  reset_fake_cupti();
  CuptiSession session(2, std::chrono::milliseconds(1));
  for (int step = 0; step < 2; ++step) {
    session.begin();
    session.begin();
    session.end();  // waits for the other one in vain
    session.end();
  }
  EXPECT_TRUE(enabled_kinds().empty());
}

// Streams of two GPUs have the same numbers.
TEST(CuptiTracer, RanksOnSeveralGpusKeepTheirStreamsApart) {
  reset_fake_cupti();
  CuptiSession session(2);
  std::vector<TracedStep> seen(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      use_fake_device(static_cast<std::uint32_t>(rank));
      CuptiTracer tracer(session, rank, 1, 1, streams_of(0));
      ASSERT_TRUE(tracer.begin_step(1));
      run_step(tracer, 0, now());
      seen[static_cast<std::size_t>(rank)] = tracer.take_step();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < 2; ++rank) {
    const TracedStep& step = seen[static_cast<std::size_t>(rank)];
    EXPECT_EQ(step.spans.size(), 7U) << "rank " << rank;
    EXPECT_EQ(step.streams.size(), 2U) << "no stream is foreign";
    EXPECT_EQ(step.spans.back().id, -1) << "also what no operation launched is the rank's own";
  }
}

TEST(CuptiSession, ManyRecordsFillManyBuffersAndDroppedOnesAreTold) {
  reset_fake_cupti({.dropped = 5});
  CuptiSession session(1);
  CuptiTracer tracer(session, 0, 1, 1, streams_of(0));
  ASSERT_TRUE(tracer.begin_step(1));
  const std::int64_t at = now();
  tracer.begin_op(1);
  constexpr int kLaunches = 40'000;
  for (int i = 0; i < kLaunches; ++i) fake_launch("_Z1kv", 1, at + i, at + i + 1);
  tracer.end_op();
  EXPECT_EQ(tracer.take_step().spans.size(), static_cast<std::size_t>(kLaunches));
  EXPECT_GT(most_buffers(), 1U);
  EXPECT_THAT(tracer.report(),
              ::testing::HasSubstr("records were dropped, so the trace has holes"));
}

TEST(CuptiSession, RefusalsAreOneSentence) {
  const auto refusal = [](const FakeCupti& fake) {
    reset_fake_cupti(fake);
    try {
      const CuptiSession session(1);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kMissingDevice);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refusal({.subscribe = CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED}),
            "kernels cannot be traced: another profiler holds CUPTI in this process");
  EXPECT_THAT(refusal({.enable = CUPTI_ERROR_INSUFFICIENT_PRIVILEGES}),
              ::testing::AllOf(
                  ::testing::StartsWith("kernels cannot be traced: cuptiActivityEnable answers "),
                  ::testing::EndsWith("NVreg_RestrictProfilingToAdminUsers=0")));
  // An update is taken, another release is not.
  EXPECT_EQ(refusal({.version = CUPTI_API_VERSION / 100 * 100 + 99}), "accepted");
  EXPECT_EQ(refusal({.version = CUPTI_API_VERSION + 100}),
            "kernels cannot be traced: the CUPTI found here is " +
                std::to_string(CUPTI_API_VERSION + 100) + ", expected " +
                std::to_string(CUPTI_API_VERSION) +
                " or an update of it, which this program was built with");
  EXPECT_EQ(refusal({}), "accepted");
  const CuptiSession first(1);
  EXPECT_EQ(refusal({}), "kernels cannot be traced: this process traces them already");
}

}  // namespace
}  // namespace shardwright::exec
