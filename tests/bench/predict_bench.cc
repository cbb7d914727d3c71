// SPDX-License-Identifier: Apache-2.0
// How many configurations a second one core predicts: the event simulation of a whole plan (lower,
// cost, simulate, exact allocated memory) and the closed form that the tuner prunes with.
#include <benchmark/benchmark.h>

#include <vector>

#include "profiles/data_file.h"
#include "profiles/profile.h"
#include "sim/bounds/bounds.h"
#include "sim/core/hf/config.h"
#include "sim/core/plan.h"
#include "sim/predict.h"

namespace {

using namespace shardwright;

/// Every k of one strategy: what a search asks for.
std::vector<Plan> plans_of(Strategy strategy, const char* stack, std::int64_t layers) {
  std::vector<Plan> plans;
  for (std::int64_t k = 0; k <= layers; ++k) {
    Plan plan;
    plan.strategy = strategy;
    plan.gpus = 256;
    plan.seq_len = 2048;
    plan.ckpt_layers = k;
    plan.stack = stack;
    plans.push_back(plan);
  }
  return plans;
}

void event_simulation(benchmark::State& state, Strategy strategy, const char* stack) {
  const Model model = load_model(profiles::data_dir() / "models", "llama-3-70b");
  sim::Predictor predictor(model, profiles::load_profile("a100-80g-4xhdr200", stack));
  const std::vector<Plan> plans = plans_of(strategy, stack, model.layers);
  const sim::PredictOptions options{.reserved = false};
  std::size_t i = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(predictor.predict(plans[i], options));
    if (++i == plans.size()) i = 0;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK_CAPTURE(event_simulation, yafsdp_native, Strategy::kYafsdp, "native");
BENCHMARK_CAPTURE(event_simulation, zero3_native, Strategy::kZero3, "native");
BENCHMARK_CAPTURE(event_simulation, yafsdp_hf_eager, Strategy::kYafsdp, "hf-eager");
BENCHMARK_CAPTURE(event_simulation, fsdp1_hf_eager, Strategy::kFsdp1, "hf-eager");
BENCHMARK_CAPTURE(event_simulation, fsdp2_torch_eager, Strategy::kFsdp2, "torch-eager");

/// A family is every k of one setting of the other knobs; they alternate as in a search.
void closed_form(benchmark::State& state, const char* stack, std::int64_t grad_accum) {
  const Model model = load_model(profiles::data_dir() / "models", "llama-3-70b");
  sim::Predictor predictor(model, profiles::load_profile("a100-80g-4xhdr200", stack));
  std::vector<Plan> families;
  for (const Strategy strategy :
       {Strategy::kYafsdp, Strategy::kYafsdpZero2, Strategy::kFsdp1, Strategy::kFsdp2,
        Strategy::kZero3, Strategy::kHsdp, Strategy::kZero1, Strategy::kZero2}) {
    for (const std::int64_t micro_batch : {1, 2, 4}) {
      for (const char* recompute : {"full", "selective-op", "norm", "swiglu", "norm,swiglu"}) {
        Plan plan = plans_of(strategy, stack, 0).front();
        set_recompute(plan, recompute);
        plan.micro_batch = micro_batch;
        plan.grad_accum = grad_accum;
        families.push_back(plan);
      }
    }
  }
  std::size_t i = 0;
  std::int64_t plans = 0;
  for (auto _ : state) {
    const std::vector<double> least_s = predictor.bounds().least_s_of_family(families[i]);
    benchmark::DoNotOptimize(least_s.data());
    plans += static_cast<std::int64_t>(least_s.size());
    if (++i == families.size()) i = 0;
  }
  state.SetItemsProcessed(plans);
}
BENCHMARK_CAPTURE(closed_form, native, "native", 1);
BENCHMARK_CAPTURE(closed_form, native_accumulating, "native", 8);
BENCHMARK_CAPTURE(closed_form, hf_eager, "hf-eager", 1);

}  // namespace
