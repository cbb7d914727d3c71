// SPDX-License-Identifier: Apache-2.0
#include "sim/core/executed_plan.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <array>
#include <utility>
#include <vector>

#include "sim/core/base/error.h"
#include "sim/core/features.h"
#include "sim/core/model.h"
#include "sim/core/parallelism.h"

namespace shardwright {

Plan with_products_in_bf16(Plan plan) {
  if (plan.numerics.precision != Precision::kFp8) return plan;
  plan.numerics.precision = Precision::kBf16;
  plan.numerics.fp8_recipe.reset();
  plan.numerics.fp8_params = false;
  return plan;
}

namespace {

/// Of the sizes along which products of layers add: tensor cores take rows of whole blocks.
std::string odd_size(const Model& model, const Plan& plan) {
  const std::int64_t unit = plan.numerics.recipe() == Fp8Recipe::kMxfp8 ? 32 : 16;
  const std::array<std::pair<const char*, std::int64_t>, 5> sizes = {
      {{"hidden size", model.hidden},
       {"width of the query heads", model.q_dim()},
       {"width of query, key and value heads", model.q_dim() + 2 * model.kv_dim()},
       {"intermediate size", model.ffn},
       {"number of tokens of a micro-batch", plan.micro_batch * plan.seq_len}}};
  for (const auto& [name, size] : sizes) {
    if (size % unit == 0) continue;
    return fmt::format("the {} is {}, expected a multiple of {} for precision fp8 ({})", name, size,
                       unit, name_of(plan.numerics.recipe()));
  }
  return "";
}

/// Of what layers multiply in.
std::string beyond_precision(const Model& model, const Plan& plan) {
  const Numerics& n = plan.numerics;
  if (n.precision == Precision::kBf16 && n.fp8_recipe) {
    return fmt::format("fp8_recipe is {}, but precision is bf16, expected precision fp8",
                       name_of(*n.fp8_recipe));
  }
  if (n.precision == Precision::kBf16) return "";
  if (n.precision != Precision::kFp8) {
    return fmt::format("precision is {}, which run does not train in, expected bf16 or fp8",
                       name_of(n.precision));
  }
  if (n.recipe() == Fp8Recipe::kDelayed || n.recipe() == Fp8Recipe::kBlock) {
    return fmt::format(
        "fp8_recipe is {}, which run does not train with, expected tensorwise, "
        "rowwise or mxfp8",
        name_of(n.recipe()));
  }
  if (n.fp8_params) return "fp8_params is on, but run gathers parameters in bf16, expected off";
  if (plan.param_dtype != DType::kBf16) {
    return fmt::format("param_dtype is {}, expected bf16, in which precision fp8 leaves the rest",
                       name_of(plan.param_dtype));
  }
  return odd_size(model, plan);
}

std::string beyond_model(const Model& model, std::int64_t seq_len) {
  const bool is_planned_only = !model.planning_only.empty();
  if (is_planned_only || !is_trained_family(model.family)) {
    return fmt::format(
        "model '{}' {}, which run does not train, expected a decoder like {} or {}", model.name,
        is_planned_only ? model.planning_only : fmt::format("is of the family {}", model.family),
        fmt::join(kTrainedFamilies.begin(), kTrainedFamilies.end() - 1, ", "),
        kTrainedFamilies.back());
  }
  if (attended_share(model, seq_len) < 1) {
    return fmt::format(
        "model '{}' attends to a window of {} tokens, but seq_len is {} and run attends to all, "
        "expected at most {}",
        model.name, model.sliding_window, seq_len, model.sliding_window);
  }
  return "";
}

/// Of what ranks share, and what they do beside training every weight.
std::string beyond_layout(const Plan& plan) {
  constexpr Features kExecuted = {Feature::kTensor, Feature::kPipeline,
                                  Feature::kBucketedStrategy};  // beyond_device() judges these
  const Parallelism& p = plan.parallel;
  if (p.tp * p.pp > 1 && plan.numerics.precision == Precision::kFp8) {
    const std::string_view size = p.tp > 1 ? "tp" : "pp";
    return fmt::format(
        "precision is fp8, but {} is {} and run multiplies so with data parallelism alone, "
        "expected bf16 or {} 1",
        size, p.tp > 1 ? p.tp : p.pp, size);
  }
  if (p.pp > 1 && p.schedule() == PipelineKind::kDualpipe) {
    return fmt::format("pp_schedule is dualpipe, which run does not do, expected {}",
                       pipeline_schedules_with([](const PipelineInfo& info) {
                         return info.order != ChunkOrder::kBothWays;
                       }));
  }
  const std::string what = beyond(with_products_in_bf16(plan), kExecuted);
  if (what.empty()) return "";
  return what +
         ", which run does not do: it trains every weight with AdamW on data, tensor and pipeline "
         "ranks, expected a plan without it, or another framework (shardwright export)";
}

std::string beyond_device(const Plan& plan) {
  const StrategyInfo& strategy = info_of(plan.strategy);
  if (!strategy.native && !strategy.native_twin) {
    std::vector<std::string_view> names;
    for (const Strategy one : all_strategies()) {
      if (info_of(one).native || info_of(one).native_twin) names.push_back(name_of(one));
    }
    return fmt::format("strategy is {}, which has no schedule on the native stack, expected {}",
                       strategy.name, fmt::join(names, ", "));
  }
  if (plan.attention != AttentionKind::kFlash) {
    return fmt::format("attention is {}, expected flash: the executor has no other",
                       name_of(plan.attention));
  }
  if (plan.offload != Offload::kNone) {
    return fmt::format("offload is {}, expected none: the executor keeps everything on its device",
                       offload_name(plan));
  }
  const TensorOverlap overlap = plan.parallel.tp_overlap.value_or(TensorOverlap::kNone);
  if (overlap != TensorOverlap::kNone) {
    return fmt::format("tp_overlap is {}, expected none: the executor multiplies whole operands",
                       name_of(overlap));
  }
  return "";
}

}  // namespace

std::string why_not_run(const Model& model, const Plan& plan) {
  std::string why = beyond_precision(model, plan);
  if (why.empty()) why = beyond_model(model, plan.seq_len);
  if (why.empty()) why = beyond_layout(plan);
  return why.empty() ? beyond_device(plan) : why;
}

void check_run(const Plan& plan, const Model& model) {
  const std::string why = why_not_run(model, plan);
  if (!why.empty()) throw InvalidPlan(why);
}

}  // namespace shardwright
