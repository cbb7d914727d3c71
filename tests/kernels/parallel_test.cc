// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/parallel.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "sim/core/base/error.h"

namespace shardwright::kernels::host {
namespace {

TEST(Parallel, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 4}) {
    Parallel parallel(threads);
    for (const std::int64_t tasks : {0, 1, 2, 3, 100}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(tasks));
      parallel.run(tasks,
                   [&](std::int64_t task, Scratch&) { ++calls[static_cast<std::size_t>(task)]; });
      for (const auto& count : calls) EXPECT_EQ(count, 1);
    }
  }
}

TEST(Parallel, RangesCoverWithoutOverlap) {
  Parallel parallel(3);
  for (const std::int64_t count : {0, 1, 9, 10, 11}) {
    std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
    parallel.for_ranges(count, 5, [&](std::int64_t begin, std::int64_t end, Scratch&) {
      EXPECT_LE(end - begin, 5);
      for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
    });
    for (const auto& times : seen) EXPECT_EQ(times, 1);
  }
}

TEST(Parallel, ThrowsTheTasksExceptionAndStaysUsable) {
  for (const int threads : {1, 3}) {
    Parallel parallel(threads);
    EXPECT_THROW(parallel.run(50,
                              [](std::int64_t task, Scratch&) {
                                if (task == 7) throw std::runtime_error("seven");
                              }),
                 std::runtime_error);
    std::atomic<int> done{0};
    parallel.run(5, [&](std::int64_t, Scratch&) { ++done; });
    EXPECT_EQ(done, 5);
  }
}

TEST(Parallel, SeveralCallersShareTheWorkers) {
  Parallel parallel(3);
  std::vector<std::thread> callers;
  std::atomic<std::int64_t> total{0};
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        std::atomic<std::int64_t> sum{0};
        parallel.run(8, [&](std::int64_t task, Scratch& scratch) {
          float* own = scratch.floats(16);
          own[0] = static_cast<float>(task);
          sum += static_cast<std::int64_t>(own[0]);
        });
        EXPECT_EQ(sum, 28);
        total += sum;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total, 4 * 200 * 28);
}

TEST(Parallel, ScratchPiecesAreAlignedAndApart) {
  Scratch scratch;
  float* a = scratch.floats(3);
  float* b = scratch.floats(100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b) % 64, 0u);
  EXPECT_GE(b - a, 3);
  scratch.reset();
  EXPECT_EQ(scratch.floats(1), a);
  EXPECT_DEATH(scratch.floats(Scratch::kBytes), "scratch");
}

TEST(Parallel, RefusesWhatItCannotDo) {
  EXPECT_THROW(Parallel(0), Error);
  EXPECT_EQ(Parallel(4).threads(), 4);
}

TEST(Isa, NamesAreRead) {
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    EXPECT_EQ(isa_from(name_of(isa)), isa);
  }
  EXPECT_FALSE(isa_from("neon"));
  EXPECT_TRUE(supported(Isa::kBaseline));
  EXPECT_EQ(supported_isas().back(), best_isa());
}

TEST(Isa, TheEnvironmentNamesTheOneToUse) {
  setenv("SHARDWRIGHT_ISA", "baseline", 1);
  EXPECT_EQ(Parallel(1).isa(), Isa::kBaseline);
  setenv("SHARDWRIGHT_ISA", "neon", 1);
  EXPECT_THROW(best_isa(), Error);
  unsetenv("SHARDWRIGHT_ISA");
  EXPECT_EQ(best_isa(), supported_isas().back());
}

}  // namespace
}  // namespace shardwright::kernels::host
