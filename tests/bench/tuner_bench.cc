// SPDX-License-Identifier: Apache-2.0
// How long a whole search takes on all cores: every plan of the default space of one model and
// cluster, the ten best different plans and the front. "plans" is the size of the space. Divided
// searches go over tensor, pipeline, context and expert parallelism as well. Bounds and full
// predictions of one model-parallel plan are timed alone, on one core.
#include <benchmark/benchmark.h>

#include <optional>
#include <vector>

#include "profiles/data_file.h"
#include "sim/core/hf/config.h"
#include "tuner/search/search.h"
#include "tuner/size/sizing.h"

namespace {

using namespace shardwright;

struct Job {
  const char* model;
  const char* cluster;
  const char* stack;
  std::int64_t gpus, seq_len, global_batch;
};

tuner::Request request_of(const Job& job) {
  tuner::Request request;
  request.gpus = job.gpus;
  request.seq_len = job.seq_len;
  request.global_batch = job.global_batch;
  return request;
}

std::vector<tuner::Scenario> scenarios_of(const Job& job) {
  return {{"as predicted", profiles::load_profile(job.cluster, job.stack)}};
}

void report(benchmark::State& state, const tuner::Counts& counts) {
  state.SetItemsProcessed(state.iterations() * counts.considered);
  state.counters["plans"] = static_cast<double>(counts.considered);
  state.counters["simulated"] = static_cast<double>(counts.simulated);
}

void search(benchmark::State& state, const Job& job) {
  const Model model = load_model(profiles::data_dir() / "models", job.model);
  const std::vector<tuner::Scenario> scenarios = scenarios_of(job);
  const tuner::Request request = request_of(job);
  tuner::Counts counts;
  for (auto _ : state) {
    tuner::Search search(model, scenarios,
                         tuner::space_of(request, model, scenarios.front().profile), {});
    benchmark::DoNotOptimize(search.best(10));
    benchmark::DoNotOptimize(search.pareto());
    counts = search.counts();
  }
  report(state, counts);
}

/// Every number of GPUs of one cluster, each with its batches: what `size` does for all of them.
void size_of_cluster(benchmark::State& state, const char* name) {
  const Model model = load_model(profiles::data_dir() / "models", name);
  const std::vector<tuner::Offer> offers = tuner::load_offers({"dgx-h100"}, std::nullopt, {}, {});
  tuner::SizingJob job;
  job.fixed.seq_len = 4096;
  job.run = tuner::usual_conditions(model, 2e12, job.fixed.seq_len);
  job.run.free_tokens = tuner::uncounted_tokens(job.run);
  for (auto _ : state) benchmark::DoNotOptimize(tuner::sweep(model, offers, job).options.size());
}
BENCHMARK_CAPTURE(size_of_cluster, llama_3_70b, "llama-3-70b")
    ->Unit(benchmark::kSecond)
    ->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(size_of_cluster, deepseek_v3, "deepseek-v3")
    ->Unit(benchmark::kSecond)
    ->MeasureProcessCPUTime();

/// tp 8, pp 8 with 8 chunks, cp 2: the plan of Llama 3.1's training.
Plan plan_of_405b() {
  Plan plan;
  plan.strategy = Strategy::kDistributedOptimizer;
  plan.stack = "megatron-core";
  plan.gpus = 1024;
  plan.seq_len = 8192;
  plan.recompute = Recompute::kNone;
  plan.grad_accum = 64;
  plan.parallel.tp = plan.parallel.pp = plan.parallel.virtual_stages = 8;
  plan.parallel.cp = 2;
  return plan;
}

void model_parallel_plan(benchmark::State& state, bool bound) {
  const Model model = load_model(profiles::data_dir() / "models", "llama-3.1-405b");
  const profiles::Profile profile = profiles::load_profile("dgx-h100", "megatron-core");
  const Plan plan = plan_of_405b();
  sim::Predictor predictor(model, profile);
  for (auto _ : state)
    benchmark::DoNotOptimize(bound ? predictor.bounds().least_pipeline_s(plan)
                                   : predictor.predict(plan).time.iteration_s);
  state.SetItemsProcessed(state.iterations());
}

void model_parallel_memory(benchmark::State& state) {
  const Model model = load_model(profiles::data_dir() / "models", "llama-3.1-405b");
  const profiles::Profile profile = profiles::load_profile("dgx-h100", "megatron-core");
  const Plan plan = plan_of_405b();
  sim::Predictor predictor(model, profile);
  for (auto _ : state) benchmark::DoNotOptimize(predictor.bounds().least_bytes(plan));
  state.SetItemsProcessed(state.iterations());
}

constexpr Job kModelParallel405b{"llama-3.1-405b", "dgx-h100", "megatron-core", 1024, 8192, 512};
constexpr Job kModelParallelV3{"deepseek-v3", "gb200-nvl72", "megatron-core", 1024, 4096, 8192};
BENCHMARK_CAPTURE(search, llama_3_1_405b, kModelParallel405b)
    ->Unit(benchmark::kSecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(search, deepseek_v3, kModelParallelV3)->Unit(benchmark::kSecond)->UseRealTime();
BENCHMARK_CAPTURE(model_parallel_plan, predicted, false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(model_parallel_plan, bounded, true)->Unit(benchmark::kMicrosecond);
BENCHMARK(model_parallel_memory)->Unit(benchmark::kMicrosecond);

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
