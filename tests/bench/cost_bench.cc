// SPDX-License-Identifier: Apache-2.0
// What one evaluation of each cost function takes; the tuner calls them millions of times.
#include <benchmark/benchmark.h>

#include <array>

#include "profiles/gpu_cost.h"
#include "sim/cost/attention_cost.h"
#include "sim/cost/collectives.h"
#include "sim/cost/gemm_cost.h"
#include "sim/cost/op_cost.h"

namespace {

using namespace shardwright;

const profiles::GpuCost& gpu(const char* id) {
  static const profiles::GpuCosts costs = profiles::load_gpu_costs();
  return costs.at(id);
}

/// Products of a 7B and a 70B layer, forward and weight gradient, and some skinny ones.
constexpr std::array<std::array<std::int64_t, 3>, 8> kProducts{{{4096, 12288, 4096},
                                                                {4096, 4096, 4096},
                                                                {4096, 11008, 4096},
                                                                {2048, 10240, 8192},
                                                                {2048, 28672, 8192},
                                                                {8192, 28672, 2048},
                                                                {2048, 1024, 8192},
                                                                {512, 512, 16384}}};

void gemm(benchmark::State& state, const char* id) {
  const profiles::GpuCost& cost = gpu(id);
  std::size_t i = 0;
  std::int64_t jitter = 0;
  for (auto _ : state) {
    const auto& [m, n, k] = kProducts[i++ % kProducts.size()];
    benchmark::DoNotOptimize(sim::gemm_time_s(cost.gemm.values, cost.rates.values, m + jitter, n, k,
                                              cost.rates.values.sm_count - 16));
    jitter = (jitter + 1) % 64;
  }
}
BENCHMARK_CAPTURE(gemm, a100, "a100-80g");
BENCHMARK_CAPTURE(gemm, h100, "h100-80g");

void attention(benchmark::State& state) {
  const profiles::GpuCost& cost = gpu("h100-80g");
  const profiles::AttentionParams& params = cost.attention.at("fa3").values;
  sim::AttentionShape shape{
      .batch_heads = 64, .kv_heads = 8, .query_length = 4096, .kv_length = 4096};
  for (auto _ : state) {
    shape.batch_heads = 1 + (shape.batch_heads + 7) % 128;
    benchmark::DoNotOptimize(sim::attention_time_s(params, cost.rates.values, shape, true, 132));
  }
}
BENCHMARK(attention);

void memory(benchmark::State& state) {
  const profiles::GpuCost& cost = gpu("h100-80g");
  double bytes = 1e6;
  for (auto _ : state) {
    bytes = bytes < 1e9 ? bytes * 1.1 : 1e6;
    benchmark::DoNotOptimize(sim::memory_time_s(cost.memory.values, cost.rates.values, bytes));
  }
}
BENCHMARK(memory);

void collective(benchmark::State& state, Collective kind, std::int64_t ranks) {
  const profiles::GpuCost& cost = gpu("h100-80g");
  const sim::NodeNetwork network{.bytes_per_s = 384e9};
  const CollectiveGroup group{.ranks = ranks, .ranks_per_node = 8};
  double bytes = 1e3;
  for (auto _ : state) {
    bytes = bytes < 1e9 ? bytes * 1.1 : 1e3;
    benchmark::DoNotOptimize(
        sim::collective_cost(cost.collectives.values, network, group, kind, bytes));
  }
}
BENCHMARK_CAPTURE(collective, gather_8, Collective::kAllGather, 8);
BENCHMARK_CAPTURE(collective, reduce_8, Collective::kAllReduce, 8);
BENCHMARK_CAPTURE(collective, gather_256, Collective::kAllGather, 256);
BENCHMARK_CAPTURE(collective, reduce_256, Collective::kAllReduce, 256);

}  // namespace
