// SPDX-License-Identifier: Apache-2.0
#include "sim/check_modelled.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>
#include <vector>

#include "sim/core/base/invalid_plan.h"
#include "sim/core/executed_plan.h"
#include "sim/program/low_precision.h"

namespace shardwright::sim {
namespace {

/// What the plan asks for that the framework lacks; empty: nothing.
std::string lacking(Plan plan, const ParallelSoftware& software) {
  if (software.supported) return {};
  const bool narrow = plan.numerics.precision != Precision::kBf16;
  if (software.other_precisions) {
    plan.numerics.precision = Precision::kBf16;
    plan.numerics.fp8_recipe.reset();
    plan.numerics.fp8_params = false;
  }
  if (software.tensor_and_pipeline && !narrow && plan.numerics.plain()) {
    Parallelism& p = plan.parallel;
    p.tp = p.pp = p.virtual_stages = 1;
    p.sp.reset();
    if (p.pp_schedule != PipelineKind::kDualpipe) p.pp_schedule.reset();
    p.pp_layout.clear();
    p.rank_order = Parallelism::kUsualOrder;
  }
  return beyond_data_parallel(plan);
}

}  // namespace

void check_modelled(const Model& model, const Plan& plan, const profiles::Profile& profile) {
  const Stack& stack = profile.stack;
  const std::string lacks = lacking(plan, stack.parallel);
  if (!lacks.empty()) {
    throw InvalidPlan(
        fmt::format("{}, which the framework {} does not do, expected a stack such as {}", lacks,
                    stack.id, stack.id == "hf-eager" ? "hf-trainer" : "megatron-core"));
  }
  if (plan.numerics.quantize != Quantize::kNone && stack.parallel.megatron) {
    throw Error(
        fmt::format("quantize is {}, which the framework {} does not do, expected none or a "
                    "stack such as hf-trainer",
                    name_of(plan.numerics.quantize), stack.id));
  }
  const Cluster& cluster = profile.cluster;
  if (cluster.devices_per_node > 0) {
    const bool runs_here = cluster.gpu.is_processor() && stack.id == "native";
    if (!runs_here || !beyond_execution(plan).empty()) {
      throw InvalidPlan(
          fmt::format("{}, but ranks of cluster {} share devices, expected a cluster of GPUs",
                      beyond_data_parallel(plan), cluster.id));
    }
    // Tensor ranks of this project's executor take turns on a processor as replicas do.
    if (plan.parallel.pp == 1) return;
    // Stages wait for one another, and where they share a core no pass has a time of its own.
    if (cluster.ranks_per_device(plan.gpus) > cluster.gpu.sm_count) {
      throw InvalidPlan(
          fmt::format("pp is {}, but {} ranks take turns on the {} cores of cluster {}, expected "
                      "at most one rank a core (gpu.sm_count), or a cluster such as cpu-cores",
                      plan.parallel.pp, plan.gpus, cluster.gpu.sm_count, cluster.id));
    }
  }
  const Numerics& n = plan.numerics;
  const Gpu& gpu = cluster.gpu;
  if (peak_flops(gpu, n.precision) <= 0) {
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
  if (plan.parallel.cp > 1 && model.recurrence.value_heads > 0 && !stack.parallel.megatron) {
    throw InvalidPlan(fmt::format(
        "cp is {}, but the framework {} does not share sequences of {} over context ranks, "
        "expected 1 or a stack such as megatron-core",
        plan.parallel.cp, stack.id, name_of(model.recurrence.kind)));
  }
  if (model.layers < plan.parallel.pp) {
    throw InvalidPlan(fmt::format("pp is {}, more than the {} layers, expected at most {}",
                                  plan.parallel.pp, model.layers, model.layers));
  }
}

}  // namespace shardwright::sim
