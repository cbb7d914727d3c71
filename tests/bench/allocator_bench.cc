// SPDX-License-Identifier: Apache-2.0
// Cost of the simulated caching allocator: the event simulation calls it for every buffer of a
// step.
//   ninja shardwright_bench && bench/allocator_bench
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "sim/memory/allocator.h"

namespace shardwright::sim {
namespace {

using BlockId = CachingAllocator::BlockId;
constexpr Bytes kMi = Bytes{1} << 20;

/// One allocation and one free beside `range` other free blocks of the same stream and pool.
void AllocatorPair(benchmark::State& state) {
  CachingAllocator allocator;
  std::mt19937 random(1);
  std::vector<BlockId> blocks;
  for (std::int64_t i = 0; i < 2 * state.range(0); ++i) {
    blocks.push_back(*allocator.allocate(kMi * static_cast<Bytes>(20 + random() % 200), 0, 0));
  }
  for (std::size_t i = 0; i < blocks.size(); i += 2) allocator.free(blocks[i]);
  std::vector<Bytes> sizes(1024);
  for (Bytes& size : sizes) size = kMi * static_cast<Bytes>(2 + random() % 200);
  std::size_t next = 0;
  for (auto _ : state) {
    const BlockId block = *allocator.allocate(sizes[next++ % sizes.size()], 0, 0);
    benchmark::DoNotOptimize(block);
    allocator.free(block);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(AllocatorPair)->Arg(1)->Arg(8)->Arg(32)->Arg(128)->Arg(1024);

/// As AllocatorPair, with every block used by another stream and freed through its events.
void AllocatorPairAcrossStreams(benchmark::State& state) {
  CachingAllocator allocator;
  Nanoseconds now = 0;
  for (auto _ : state) {
    now += 10;
    const BlockId block = *allocator.allocate(64 * kMi, 0, now);
    allocator.free(block, CachingAllocator::StreamUse{1, now + 45});
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(AllocatorPairAcrossStreams);

/// A training step of `range` layers: per layer a gathered weight on a side stream, ten activations
/// kept for backward and six temporaries in either direction; two steps from an allocator that is
/// cleared.
void AllocatorTrainingStep(benchmark::State& state) {
  const auto layers = static_cast<std::size_t>(state.range(0));
  CachingAllocator allocator({.limit_bytes = 80 * 1024 * kMi});
  std::vector<BlockId> kept;
  std::int64_t pairs = 0;
  for (auto _ : state) {
    allocator.clear();
    Nanoseconds now = 0;
    for (int step = 0; step < 2; ++step) {
      for (std::size_t pass = 0; pass < 2 * layers; ++pass) {
        const bool forward = pass < layers;
        const BlockId weight = *allocator.allocate(400 * kMi, 1, now);
        for (int i = 0; i < 6; ++i) {
          now += 1000;
          const BlockId temporary = *allocator.allocate((16 + 8 * i) * kMi, 0, now);
          if (forward && i < 5) {
            kept.push_back(*allocator.allocate(16 * kMi, 0, now));
            kept.push_back(*allocator.allocate(64 * 1024, 0, now));
          }
          allocator.free(temporary);
        }
        pairs += 7;
        if (!forward) {
          for (int i = 0; i < 10; ++i) {
            allocator.free(kept.back());
            kept.pop_back();
          }
          pairs += 10;
        }
        allocator.free(weight, CachingAllocator::StreamUse{0, now + 8000});
      }
    }
    benchmark::DoNotOptimize(allocator.stats().reserved.peak);
  }
  state.SetItemsProcessed(pairs);
}
BENCHMARK(AllocatorTrainingStep)->Arg(32)->Arg(80);

}  // namespace
}  // namespace shardwright::sim
