// SPDX-License-Identifier: Apache-2.0
// How long a whole search takes on all cores: every plan of the default space of one model and
// cluster, the ten best different plans and the front. "plans" is the size of the space.
#include <benchmark/benchmark.h>

#include <vector>

#include "profiles/data_dir.h"
#include "sim/core/hf_config.h"
#include "tuner/search.h"

namespace {

using namespace shardwright;

struct Job {
  const char* model;
  const char* cluster;
  const char* stack;
  std::int64_t gpus, seq_len, global_batch;
};

void search(benchmark::State& state, const Job& job) {
  const Model model = load_model(profiles::data_dir() / "models", job.model);
  const std::vector<tuner::Scenario> scenarios{
      {"as predicted", profiles::load_profile(job.cluster, job.stack)}};
  tuner::Request request;
  request.gpus = job.gpus;
  request.seq_len = job.seq_len;
  request.global_batch = job.global_batch;
  tuner::Counts counts;
  for (auto _ : state) {
    tuner::Search search(model, scenarios,
                         tuner::space_of(request, model, scenarios.front().profile), {});
    benchmark::DoNotOptimize(search.best(10));
    benchmark::DoNotOptimize(search.pareto());
    counts = search.counts();
  }
  state.SetItemsProcessed(state.iterations() * counts.considered);
  state.counters["plans"] = static_cast<double>(counts.considered);
  state.counters["simulated"] = static_cast<double>(counts.simulated);
}

constexpr Job kLlama3{"llama-3-70b", "a100-80g-4xhdr200", "native", 256, 2048, 1024};
constexpr Job kLlama3OneEach{"llama-3-70b", "a100-80g-4xhdr200", "native", 256, 2048, 256};
constexpr Job kLlama3Eager{"llama-3-70b", "a100-80g-4xhdr200", "hf-eager", 256, 2048, 1024};
constexpr Job kBig{"llama-3.1-405b", "dgx-h100", "native", 4096, 8192, 32768};
BENCHMARK_CAPTURE(search, llama_3_70b, kLlama3)->Unit(benchmark::kSecond)->UseRealTime();
BENCHMARK_CAPTURE(search, llama_3_70b_one_each, kLlama3OneEach)
    ->Unit(benchmark::kSecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(search, llama_3_70b_eager, kLlama3Eager)->Unit(benchmark::kSecond)->UseRealTime();
BENCHMARK_CAPTURE(search, llama_3_1_405b, kBig)->Unit(benchmark::kSecond)->UseRealTime();

}  // namespace
