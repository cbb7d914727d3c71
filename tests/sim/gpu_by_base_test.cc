// SPDX-License-Identifier: Apache-2.0
// A GPU is what its file says: one that takes every value from another by `base` predicts exactly
// what that one does, whatever its name, strategy, framework or precision.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "profiles/cluster_file.h"
#include "profiles/data_file.h"
#include "profiles/gpu_file.h"
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "sim/predict.h"
#include "tests/sim/model_parallel_plans.h"
#include "tests/support/not_empty.h"

namespace shardwright::sim {
namespace {

struct PlanKind {
  const char* stack;
  Strategy strategy;
  Precision precision;
  std::optional<Fp8Recipe> recipe;
};

/// Times and bytes to the last digit, or that the plan is refused.
std::string predicted_on(const profiles::ClusterFile& cluster, const PlanKind& run) {
  Model model = llama_70b();
  model.layers = 2;
  Plan plan = plan_of(cluster.cluster.gpus_per_node, 1, 1, 2);
  plan.strategy = run.strategy;
  plan.stack = run.stack;
  plan.numerics.precision = run.precision;
  plan.numerics.fp8_recipe = run.recipe;
  try {
    const auto profile = profiles::make_profile(cluster, profiles::load_stack(run.stack));
    const Prediction p = predict(model, profile, plan);
    return fmt::format("{} s, {} and {} bytes", p.time.iteration_s, p.memory.peak_allocated_bytes,
                       p.memory.peak_reserved_bytes);
  } catch (const Error&) {
    return "refused";
  }
}

TEST(GpuByBase, PredictsWhatItsBaseDoes) {
  const PlanKind runs[] = {
      {"torch-compile", Strategy::kFsdp2, Precision::kBf16, {}},
      {"megatron-core-nemo", Strategy::kDistributedOptimizer, Precision::kBf16, {}},
      {"torch-compile", Strategy::kFsdp2, Precision::kFp8, Fp8Recipe::kTensorwise},
      {"megatron-core", Strategy::kDistributedOptimizer, Precision::kFp8, Fp8Recipe::kDelayed},
      {"megatron-core-nemo", Strategy::kDistributedOptimizer, Precision::kFp8, Fp8Recipe::kMxfp8},
  };
  int predicted = 0;
  for (const std::string& name : not_empty(profiles::shipped_names(profiles::DataKind::kGpu))) {
    const profiles::ClusterFile shipped =
        profiles::load_cluster(profiles::load_gpu(name).usual_cluster);
    profiles::ClusterFile own = shipped;
    own.gpu =
        profiles::parse_gpu(fmt::format(R"({{"id": "x100", "base": "{}"}})", name), "x100.json");
    own.cluster.gpu = own.gpu.gpu;
    for (const PlanKind& run : runs) {
      const std::string theirs = predicted_on(shipped, run);
      EXPECT_EQ(predicted_on(own, run), theirs)
          << name << " with " << run.stack << " in " << name_of(run.precision);
      if (theirs != "refused") ++predicted;
    }
  }
  EXPECT_GT(predicted, 100);
}

TEST(GpuByBase, OnlyGpusWithBlockScalesMultiplyMxfp8) {
  const PlanKind run = {"megatron-core", Strategy::kDistributedOptimizer, Precision::kFp8,
                        Fp8Recipe::kMxfp8};
  for (const char* cluster : {"dgx-b200", "gb300-nvl72", "mi355x-8x400"})
    EXPECT_NE(predicted_on(profiles::load_cluster(cluster), run), "refused") << cluster;
  for (const char* cluster : {"dgx-h100", "l40s-pcie8", "mi300x-8x400"})
    EXPECT_EQ(predicted_on(profiles::load_cluster(cluster), run), "refused") << cluster;
}

}  // namespace
}  // namespace shardwright::sim
