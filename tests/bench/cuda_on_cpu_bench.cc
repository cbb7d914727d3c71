// SPDX-License-Identifier: Apache-2.0
// What it costs to run the threads of a CUDA block on the processor (tests/support/cuda_on_cpu).
// The time is that of one thread of the block.
#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

namespace {

constexpr int kRepeats = 100;

void run_block(benchmark::State& state, const std::function<void()>& thread, int repeats) {
  const auto threads = static_cast<unsigned>(state.range(0));
  for (auto _ : state) cuda_on_cpu::run({"bench", 1, threads, 0, thread});
  state.counters["time"] = benchmark::Counter(
      static_cast<double>(threads) * repeats,
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void begin_and_end(benchmark::State& state) {
  run_block(
      state, [] { benchmark::ClobberMemory(); }, 1);
}
void barrier(benchmark::State& state) {
  run_block(
      state,
      [] {
        for (int i = 0; i < kRepeats; ++i) __syncthreads();
      },
      kRepeats);
}
void shuffle(benchmark::State& state) {
  run_block(
      state,
      [] {
        float value = 1.0f;
        for (int i = 0; i < kRepeats; ++i) value = 0.5f * __shfl_xor_sync(~0u, value, 1);
        benchmark::DoNotOptimize(value);
      },
      kRepeats);
}

BENCHMARK(begin_and_end)->ArgName("threads")->Arg(32)->Arg(256)->Arg(1024);
BENCHMARK(barrier)->ArgName("threads")->Arg(32)->Arg(256)->Arg(1024);
BENCHMARK(shuffle)->ArgName("threads")->Arg(32)->Arg(256)->Arg(1024);

}  // namespace
