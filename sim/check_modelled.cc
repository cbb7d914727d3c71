// SPDX-License-Identifier: Apache-2.0
#include "sim/check_modelled.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>
#include <vector>

#include "sim/core/base/invalid_plan.h"
#include "sim/core/executed_plan.h"
#include "sim/core/features.h"
#include "sim/program/low_precision.h"

namespace shardwright::sim {
namespace {

void check_framework(const Model& model, const Plan& plan, const Stack& stack) {
  const Features does = stack.parallel.features();
  const Features lacks = features_of(plan).without(does);
  if (lacks.any()) {
    std::string_view expected = "a stack such as megatron-core";
    if (!lacks.without({Feature::kQuantized}).any())
      expected = "none or a stack such as hf-trainer";
    else if (stack.id == "hf-eager")
      expected = "a stack such as hf-trainer";
    throw InvalidPlan(fmt::format("{}, which the framework {} does not do, expected {}",
                                  beyond(plan, does), stack.id, expected));
  }
  if (plan.parallel.cp > 1 && model.recurrence.value_heads > 0 &&
      !does.has(Feature::kContextOfRecurrence)) {
    throw InvalidPlan(fmt::format(
        "cp is {}, but the framework {} does not share sequences of {} over context ranks, "
        "expected 1 or a stack such as megatron-core",
        plan.parallel.cp, stack.id, name_of(model.recurrence.kind)));
  }
}

/// Of a cluster whose ranks share processors.
void check_shared_devices(const Plan& plan, const profiles::Profile& profile) {
  const Cluster& cluster = profile.cluster;
  if (cluster.devices_per_node == 0 || !features_of(plan).any()) return;
  const bool runs_here = cluster.gpu.is_processor() && profile.stack.id == "native";
  if (!runs_here || !beyond_execution(plan).empty()) {
    throw InvalidPlan(
        fmt::format("{}, but ranks of cluster {} share devices, expected a cluster of GPUs",
                    beyond(plan, {}), cluster.id));
  }
  // Tensor ranks of this project's executor take turns on a processor as replicas do. Stages wait
  // for one another, and where they share a core no pass has a time of its own.
  if (plan.parallel.pp > 1 && cluster.ranks_per_device(plan.gpus) > cluster.gpu.sm_count) {
    throw InvalidPlan(
        fmt::format("pp is {}, but {} ranks take turns on the {} cores of cluster {}, expected "
                    "at most one rank a core (gpu.sm_count), or a cluster such as cpu-cores",
                    plan.parallel.pp, plan.gpus, cluster.gpu.sm_count, cluster.id));
  }
}

void check_precision(const Plan& plan, const Gpu& gpu) {
  const Numerics& n = plan.numerics;
  const bool has_it = peak_flops(gpu, n.precision) > 0;
  if (!has_it && n.precision == Precision::kBf16) {
    if (plan.param_dtype != DType::kBf16) return;
    throw InvalidPlan(
        fmt::format("precision is bf16, which the GPU {} lacks, expected --precision fp16 "
                    "with a stack that does it, such as megatron-core",
                    gpu.id));
  }
  if (!has_it) {
    std::vector<std::string_view> has;
    for (const Precision other :
         {Precision::kBf16, Precision::kFp16, Precision::kFp8, Precision::kNvfp4}) {
      if (peak_flops(gpu, other) > 0) has.push_back(name_of(other));
    }
    throw InvalidPlan(fmt::format("precision is {}, which the GPU {} lacks, expected {}",
                                  name_of(n.precision), gpu.id, fmt::join(has, " or ")));
  }
  if (n.fp8_recipe == Fp8Recipe::kMxfp8 && gpu.mxfp8_gemm_share <= 0) {
    throw InvalidPlan(
        fmt::format("fp8_recipe is mxfp8, whose blocks of 32 the GPU {} does not scale, expected "
                    "delayed, tensorwise, rowwise or block",
                    gpu.id));
  }
}

}  // namespace

void check_modelled(const Model& model, const Plan& plan, const profiles::Profile& profile) {
  check_framework(model, plan, profile.stack);
  check_shared_devices(plan, profile);
  check_precision(plan, profile.cluster.gpu);
  if (model.layers < plan.parallel.pp) {
    throw InvalidPlan(fmt::format("pp is {}, more than the {} layers, expected at most {}",
                                  plan.parallel.pp, model.layers, model.layers));
  }
}

}  // namespace shardwright::sim
