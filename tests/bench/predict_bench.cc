// How many configurations a second one core predicts: the event simulation of a whole plan (lower,
// cost, simulate, exact allocated memory) and the closed form that the tuner prunes with.
#include <benchmark/benchmark.h>

#include <vector>

#include "profiles/data_dir.h"
#include "profiles/profile.h"
#include "sim/core/hf_config.h"
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

}  // namespace
