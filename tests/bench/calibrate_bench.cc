// SPDX-License-Identifier: Apache-2.0
// What a calibration takes: condensing a trace's timings, and fitting the groups to them.
#include <benchmark/benchmark.h>

#include <random>

#include "sim/calibrate/calibrate.h"
#include "sim/calibrate/rows.h"
#include "tests/sim/synthetic_machine.h"

namespace {

using namespace shardwright;
namespace made = sim::synthetic;

std::vector<profiles::Observation> design() {
  std::vector<profiles::Observation> list;
  for (const std::int64_t m : {2048, 4096, 8192})
    for (const std::int64_t n : {512, 1024, 4096, 11008})
      for (const std::int64_t k : {256, 1024, 4096}) list.push_back(made::product(m, n, k));
  for (const bool backward : {false, true})
    for (std::int64_t tokens = 512; tokens <= 16384; tokens *= 2)
      list.push_back(made::attention(tokens, backward));
  for (const std::int64_t bytes : {1'000'000, 30'000'000, 134'000'000})
    for (const OpKind op : {OpKind::kNorm, OpKind::kActivation, OpKind::kGradientNorm})
      list.push_back(made::memory(op, bytes));
  for (const OpKind op : {OpKind::kAllGather, OpKind::kReduceScatter})
    for (std::int64_t bytes = 1024; bytes < 2'000'000'000; bytes *= 4)
      list.push_back(made::collective(op, bytes, 8));
  return list;
}

const profiles::Profile& base() {
  static const profiles::Profile profile = profiles::load_profile("dgx-h100", "native");
  return profile;
}

profiles::ObservationSet timings(int repeats) {
  std::mt19937 random(1);
  return made::timed(base(), design(), repeats, random);
}

void rows(benchmark::State& state) {
  const profiles::ObservationSet set = timings(static_cast<int>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(sim::rows_of(set));
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(set.observations.size()));
}
BENCHMARK(rows)->Arg(10)->Arg(1000)->Unit(benchmark::kMillisecond);

void fit(benchmark::State& state, profiles::CostGroup group) {
  const auto measured = sim::rows_of(timings(5)).rows;
  const auto targets = sim::targets_of(measured, group);
  const sim::Sharing sharing = sim::sharing_of(base(), measured);
  for (auto _ : state) {
    sim::EditableProfile profile(base());
    benchmark::DoNotOptimize(sim::fit_group(profile, group, targets, sharing));
  }
}
BENCHMARK_CAPTURE(fit, products, profiles::CostGroup::kProducts)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(fit, attention, profiles::CostGroup::kAttention)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(fit, memory, profiles::CostGroup::kMemory)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(fit, collectives, profiles::CostGroup::kCollectives)
    ->Unit(benchmark::kMillisecond);

}  // namespace
