// SPDX-License-Identifier: Apache-2.0
// The emulator itself: what it computes, and that broken kernels are stopped with their name.
#include "tests/support/cuda_on_cpu/emulation.h"

#include <cuda_bf16.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.h"

namespace cuda_on_cpu {
namespace {

using ::testing::HasSubstr;

struct WithSeed {
  explicit WithSeed(std::uint64_t seed) { set_options({seed}); }
  ~WithSeed() { set_options({0}); }
};

Launch launch_of(dim3 grid, dim3 block, std::function<void()> thread, std::size_t shared = 0) {
  return {"probe", grid, block, shared, std::move(thread)};
}

std::string failure_of(const Launch& launch) {
  try {
    run(launch);
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

TEST(CudaOnCpu, EveryThreadOfEveryBlockRunsOnce) {
  for (const std::uint64_t seed : {0, 1, 2}) {
    const WithSeed with(seed);
    std::vector<int> visits(3 * 2 * 2 * 8 * 3 * 2);
    run(launch_of({3, 2, 2}, {8, 3, 2}, [&] {
      const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
      const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
      ++visits[block * 48 + thread];
    }));
    EXPECT_EQ(visits, std::vector<int>(visits.size(), 1));
  }
}

// A tree sum in shared memory needs a barrier at every level.
void tree_sum(const int* in, int* out, bool with_barriers) {
  int* shared = static_cast<int*>(shared_memory());
  shared[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    if (with_barriers) __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = shared[0];
}

TEST(CudaOnCpu, BarriersOrderSharedMemory) {
  std::vector<int> in(4 * 256), out(4);
  std::iota(in.begin(), in.end(), 0);
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    const WithSeed with(seed);
    run(launch_of(
        4, 256, [&] { tree_sum(in.data(), out.data(), true); }, 256 * sizeof(int)));
    for (int block = 0; block < 4; ++block) {
      EXPECT_EQ(out[static_cast<std::size_t>(block)], 256 * 256 * block + 255 * 128);
    }
  }
}

TEST(CudaOnCpu, AnotherOrderOfThreadsShowsARace) {
  std::vector<int> in(256, 1);
  std::set<int> results;
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    const WithSeed with(seed);
    int out = 0;
    run(launch_of(
        1, 256, [&] { tree_sum(in.data(), &out, false); }, 256 * sizeof(int)));
    results.insert(out);
  }
  EXPECT_GT(results.size(), 1u);
}

// A warp may be a whole round behind: one barrier a round protects the flags being set, the other
// one their being used before they are set again.
TEST(CudaOnCpu, SomeWarpsRunFarAhead) {
  const auto wrong_rounds = [](bool second_barrier) {
    int wrong = 0;
    for (const std::uint64_t seed : {1, 2, 3}) {
      const WithSeed with(seed);
      run(launch_of(
          1, 128,
          [&] {
            int* flags = static_cast<int*>(shared_memory());
            for (int round = 0; round < 8; ++round) {
              __syncwarp();
              if (threadIdx.x % 32 == 0) flags[threadIdx.x / 32] = round;
              __syncthreads();
              for (int warp = 0; warp < 4; ++warp) wrong += flags[warp] != round;
              if (second_barrier) __syncthreads();
            }
          },
          4 * sizeof(int)));
    }
    return wrong;
  };
  EXPECT_EQ(wrong_rounds(true), 0);
  EXPECT_GT(wrong_rounds(false), 0);
}

TEST(CudaOnCpu, ABarrierThatSomeThreadsMissIsAnError) {
  const std::string what = failure_of(launch_of(2, 64, [] {
    if (blockIdx.x == 1 && threadIdx.x >= 60) return;
    __syncthreads();
  }));
  EXPECT_THAT(what, HasSubstr("kernel probe, block (1, 0, 0)"));
  EXPECT_THAT(what, HasSubstr("60 of 64 threads wait at __syncthreads, 4 have ended"));
  // The machine works again after a failure.
  int count = 0;
  run(launch_of(1, 64, [&] {
    __syncthreads();
    ++count;
  }));
  EXPECT_EQ(count, 64);
}

TEST(CudaOnCpu, AWarpOperationThatSomeLanesMissIsAnError) {
  EXPECT_THAT(failure_of(launch_of(1, 32,
                                   [] {
                                     if (threadIdx.x == 5) return;
                                     __syncwarp();
                                   })),
              HasSubstr("waits for lanes that have ended"));
  EXPECT_THAT(failure_of(launch_of(1, 48, [] { __shfl_xor_sync(~0u, 1, 1); })),
              HasSubstr("waits for lanes that have ended or are not part of the block"));
  EXPECT_THAT(failure_of(launch_of(1, 32,
                                   [] {
                                     if (threadIdx.x < 16) {
                                       __ballot_sync(~0u, 1);
                                     } else {
                                       __syncwarp();
                                     }
                                   })),
              HasSubstr("meet in different operations"));
  EXPECT_THAT(failure_of(launch_of(1, 32, [] { __syncwarp(0xfff0u); })),
              HasSubstr("mask leaves it out"));
  EXPECT_THAT(failure_of(launch_of(1, 64,
                                   [] {
                                     if (threadIdx.x < 32) {
                                       __syncthreads();
                                     } else if (threadIdx.x < 40) {
                                       __syncwarp();
                                     } else {
                                       __syncthreads();
                                     }
                                   })),
              HasSubstr("8 wait for lanes of their warp"));
}

TEST(CudaOnCpu, WarpOperationsFollowPtx) {
  for (const std::uint64_t seed : {0, 7}) {
    const WithSeed with(seed);
    run(launch_of(1, 64, [] {
      const int lane = static_cast<int>(threadIdx.x % 32);
      EXPECT_EQ(__shfl_sync(~0u, lane * 2, 7), 14);
      EXPECT_EQ(__shfl_sync(~0u, lane, 3, 8), lane / 8 * 8 + 3);
      EXPECT_EQ(__shfl_xor_sync(~0u, lane, 16), lane ^ 16);
      EXPECT_EQ(__shfl_down_sync(~0u, lane, 5u), lane + 5 < 32 ? lane + 5 : lane);
      EXPECT_EQ(__shfl_up_sync(~0u, lane, 5u, 16), lane % 16 >= 5 ? lane - 5 : lane);
      EXPECT_EQ(__ballot_sync(~0u, lane % 3 == 0), 0x49249249u);
      EXPECT_EQ(__any_sync(~0u, lane == 31), 1);
      EXPECT_EQ(__all_sync(~0u, lane != 31), 0);
      // Two halves of a warp on their own.
      const unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
      EXPECT_EQ(__shfl_sync(half, lane, lane < 16 ? 2 : 18), lane < 16 ? 2 : 18);
      EXPECT_EQ(__syncthreads_count(lane == 4), 2);
      EXPECT_EQ(__syncthreads_or(lane == 40), 0);
      EXPECT_EQ(__syncthreads_and(lane < 32), 1);
    }));
  }
}

TEST(CudaOnCpu, ChecksWhatALaunchAsksFor) {
  EXPECT_THAT(failure_of(launch_of(1, 1025, [] {})), HasSubstr("(1025, 1, 1) threads"));
  EXPECT_THAT(failure_of(launch_of({1, 65536}, 32, [] {})), HasSubstr("(1, 65536, 1) blocks"));
  EXPECT_THAT(failure_of(launch_of(
                  1, 32, [] {}, 232449)),
              HasSubstr("232449 bytes"));
}

TEST(CudaOnCpu, SharedMemoryBeginsWithNansAndEndsWhereItEnds) {
  run(launch_of(
      2, 32,
      [] {
        float* shared = static_cast<float*>(shared_memory());
        EXPECT_TRUE(std::isnan(shared[threadIdx.x]));
        shared[threadIdx.x] = 1.0f;
      },
      128));
#ifndef __SANITIZE_ADDRESS__
  EXPECT_THAT(failure_of(launch_of(
                  1, 32, [] { static_cast<char*>(shared_memory())[100 + threadIdx.x] = 1; }, 128)),
              HasSubstr("behind its 128 bytes of dynamic shared memory, at byte 128"));
#endif
}

TEST(CudaOnCpu, AsynchronousCopiesHappenWhenTheyAreWaitedFor) {
  namespace cuda = shardwright::kernels::cuda;
  alignas(16) const std::uint32_t global[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  run(launch_of(
      1, 1,
      [&] {
        auto* shared = static_cast<std::uint32_t*>(shared_memory());
        cuda::cp_async<16>(shared, global);
        cuda::cp_async_commit();
        cuda::cp_async<16>(shared + 4, global + 4, false);
        cuda::cp_async<4>(shared + 5, global + 5);
        cuda::cp_async_commit();
        EXPECT_NE(shared[0], 1u);
        cuda::cp_async_wait<1>();
        EXPECT_EQ(shared[3], 4u);
        EXPECT_NE(shared[4], 0u);
        cuda::cp_async_wait<0>();
        EXPECT_EQ(shared[7], 0u);
        EXPECT_EQ(shared[5], 6u);
        EXPECT_EQ(shared[6], 0u);
      },
      32));
  EXPECT_THAT(
      failure_of(launch_of(
          1, 1, [&] { cuda::cp_async<16>(static_cast<char*>(shared_memory()) + 8, global); }, 32)),
      HasSubstr("no multiple of 16"));
  EXPECT_THAT(
      failure_of(launch_of(
          1, 1, [&] { cuda::cp_async<4>(static_cast<char*>(shared_memory()) + 2, global); }, 32)),
      HasSubstr("no multiple of 4"));
}

// Streams of several devices run kernels at the same time.
TEST(CudaOnCpu, SeveralHostThreadsRunKernels) {
  std::vector<std::thread> threads;
  std::vector<int> sums(4);
  int together = 0;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<int> in(256, static_cast<int>(t)), out(1);
      for (int repeat = 0; repeat < 20; ++repeat) {
        run(launch_of(
            1, 256,
            [&] {
              __shared__ int last;
              tree_sum(in.data(), out.data(), true);
              if (threadIdx.x == 0) last = static_cast<int>(t);
              __syncthreads();
              if (last == static_cast<int>(t)) atomicAdd(&together, 1);
            },
            1024));
      }
      sums[t] = out[0];
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sums, (std::vector<int>{0, 256, 512, 768}));
  EXPECT_EQ(together, 4 * 20 * 256);
}

TEST(CudaOnCpu, Bf16RoundsToNearestEven) {
  EXPECT_EQ(__float2bfloat16_rn(1.0f).x, 0x3f80);
  EXPECT_EQ(__float2bfloat16_rn(1.0f + 0x1p-8f).x, 0x3f80);
  EXPECT_EQ(__float2bfloat16_rn(1.0f + 0x3p-8f).x, 0x3f82);
  EXPECT_EQ(__float2bfloat16_rn(1.0f + 0x1p-8f + 0x1p-20f).x, 0x3f81);
  EXPECT_EQ(__float2bfloat16_rn(0x1.ffp127f).x, 0x7f80);
  EXPECT_TRUE(std::isnan(__bfloat162float(__float2bfloat16_rn(std::nanf("")))));
  EXPECT_EQ(shardwright::kernels::cuda::pack_bf16(1.0f, -2.0f), 0xc0003f80u);
}

TEST(CudaOnCpu, LaunchesCarryTheLaunchersName) {
  try {
    shardwright::kernels::cuda::launch(
        +[](int) {
          __syncthreads();
          if (threadIdx.x == 0) fail("stop");
        },
        {1, 32}, nullptr, 3);
    cudaDeviceSynchronize();  // kernels run when somebody waits for them
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("stop"));
    EXPECT_THAT(error.what(), HasSubstr("LaunchesCarryTheLaunchersName"));
  }
}

}  // namespace
}  // namespace cuda_on_cpu
