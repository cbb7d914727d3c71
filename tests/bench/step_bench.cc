// SPDX-License-Identifier: Apache-2.0
// Speed of whole optimizer steps on this machine: a small Llama on one rank, and sharded over local
// ranks that share the threads. scripts/compare_with_pytorch runs the first of them beside PyTorch.
#include <benchmark/benchmark.h>

#include "exec/comm/local_communicator.h"
#include "exec/executor.h"
#include "exec/host/host_device.h"
#include "kernels/random.h"
#include "profiles/stack_file.h"
#include "sim/pipeline/step_program.h"
#include "sim/strategies/lower.h"

namespace shardwright::exec {
namespace {

constexpr std::int64_t kSequences = 8;

Model small_llama() {
  Model m;
  m.name = "small-llama";
  m.family = "llama";
  m.layers = 4;
  m.hidden = 256;
  m.heads = 8;
  m.kv_heads = 4;
  m.head_dim = 32;
  m.ffn = 704;
  m.vocab = 256;
  m.max_positions = 256;
  return m;
}

Plan plan_of(Strategy strategy, std::int64_t ranks, DType dtype) {
  Plan plan;
  plan.strategy = strategy;
  plan.gpus = ranks;
  plan.seq_len = 256;
  plan.micro_batch = kSequences / ranks;
  plan.recompute = Recompute::kNone;
  plan.param_dtype = dtype;
  return plan;
}

Batch random_batch(const Plan& plan, std::int64_t vocab, int rank) {
  const kernels::RandomStream random{static_cast<std::uint64_t>(rank),
                                     kernels::RandomSite::kSynthetic, 0};
  const auto count = static_cast<std::uint64_t>(plan.micro_batch * plan.seq_len);
  Batch batch;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto token = [&](std::uint64_t at) {
      return static_cast<std::int32_t>(random.below(at, static_cast<std::uint64_t>(vocab)));
    };
    batch.tokens.push_back(token(i));
    batch.targets.push_back(token(i + 1));
  }
  return batch;
}

void step_bench(benchmark::State& state, Strategy strategy, std::int64_t ranks, DType dtype,
                StreamMode mode) {
  const Model model = small_llama();
  const Plan plan = plan_of(strategy, ranks, dtype);
  const Schedule schedule =
      sim::executed_step(model, plan, profiles::load_stack("native").stack, plan.gpus)
          .stages.front();
  kernels::host::Parallel parallel(static_cast<int>(state.range(0)));
  LocalWorld world(static_cast<int>(ranks), static_cast<int>(schedule.shard_ranks()));
  world.run([&](int rank) {
    HostDevice device(parallel, mode);
    Executor executor(model, plan, schedule, device, world.groups(rank, device));
    executor.initialize(1);
    const Batch batch = random_batch(plan, model.vocab, rank);
    StepOptions options;
    options.clip.max_norm = 1;
    const auto step = [&] {
      ++options.adamw.step;
      executor.step(batch, options);
    };
    options.adamw.step = 0;
    step();
    // The first rank decides how many steps there are.
    for (std::int64_t go = 1;;) {
      if (rank == 0) go = state.KeepRunning() ? 1 : 0;
      std::vector<std::int64_t> all(static_cast<std::size_t>(ranks));
      executor.world().exchange(std::as_bytes(std::span(&go, 1)),
                                std::as_writable_bytes(std::span(all)));
      if (all[0] == 0) break;
      step();
    }
  });
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(kSequences * plan.seq_len),
                                                  benchmark::Counter::kIsIterationInvariantRate);
}

void threads(benchmark::internal::Benchmark* bench) {
  bench->ArgName("threads")->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();
}

BENCHMARK_CAPTURE(step_bench, single, Strategy::kSingle, 1, DType::kFp32, StreamMode::kInline)
    ->Apply(threads);
BENCHMARK_CAPTURE(step_bench, single_bf16, Strategy::kSingle, 1, DType::kBf16, StreamMode::kInline)
    ->Apply(threads);
BENCHMARK_CAPTURE(step_bench, yafsdp_2, Strategy::kYafsdp, 2, DType::kFp32, StreamMode::kInline)
    ->Apply(threads);
BENCHMARK_CAPTURE(step_bench, yafsdp_2_streams, Strategy::kYafsdp, 2, DType::kFp32,
                  StreamMode::kThreads)
    ->Apply(threads);

}  // namespace
}  // namespace shardwright::exec
