// SPDX-License-Identifier: Apache-2.0
#include "sim/core/executed_plan.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <array>
#include <optional>
#include <utility>

#include "sim/core/base/error.h"
#include "sim/core/features.h"
#include "sim/core/model.h"
#include "sim/core/parallelism.h"

namespace shardwright {

namespace {

/// Beside products in fp8.
constexpr Features kExecuted = {Feature::kTensor, Feature::kPipeline};

/// The first thing of tensor parallelism or a pipeline that a plan asks for and the executor does
/// not run: in short, and as a sentence that goes on with what it expects.
struct Beyond {
  std::string what, sentence;
};

std::optional<Beyond> beyond_model_parallel(const Plan& plan) {
  const Parallelism& p = plan.parallel;
  if (p.tp * p.pp > 1 && plan.numerics.precision == Precision::kFp8) {
    const std::string size =
        p.tp > 1 ? fmt::format("tp is {}", p.tp) : fmt::format("pp is {}", p.pp);
    return Beyond{"precision is fp8 and " + size,
                  "precision is fp8, but " + size +
                      ", and the executor multiplies so with data parallelism only"};
  }
  if (p.pp > 1 && p.schedule() == PipelineKind::kDualpipe) {
    const std::string what = "pp_schedule is dualpipe";
    return Beyond{what, what + ", which the executor does not run"};
  }
  return std::nullopt;
}

}  // namespace

std::string beyond_execution(const Plan& plan) {
  if (const auto beyond = beyond_model_parallel(plan)) return beyond->what;
  return beyond(with_products_in_bf16(plan), kExecuted);
}

void check_executed(const Plan& plan, std::string_view expected) {
  if (const auto beyond = beyond_model_parallel(plan))
    throw InvalidPlan(fmt::format("{}, expected {}", beyond->sentence, expected));
  refuse_beyond(with_products_in_bf16(plan), kExecuted,
                "the executor runs data, tensor and pipeline parallelism only", expected);
}

namespace {

/// What the executor does not do for a model in sequences of that length, as "has experts".
std::string beyond_executor(const Model& model, std::int64_t seq_len) {
  if (!model.planning_only.empty()) return model.planning_only;
  if (!is_trained_family(model.family)) return fmt::format("is of the family {}", model.family);
  if (attended_share(model, seq_len) < 1) {
    return fmt::format("attends to a window of {} tokens in longer sequences",
                       model.sliding_window);
  }
  return "";
}

/// Of what is neither the model's nor parallel.
std::string beyond_device(const Plan& plan) {
  const StrategyInfo& strategy = info_of(plan.strategy);
  if (!strategy.native && !strategy.native_twin)
    return fmt::format("the strategy {} has no schedule on the native stack", strategy.name);
  if (plan.attention != AttentionKind::kFlash) {
    return fmt::format("attention is {}, expected flash: the executor has no other",
                       name_of(plan.attention));
  }
  if (plan.offload != Offload::kNone) {
    return fmt::format("offload is {}, expected none: the executor keeps everything on its device",
                       offload_name(plan));
  }
  return "";
}

}  // namespace

std::string why_not_run(const Model& model, const Plan& plan) {
  if (std::string why = untrained_precision(model, plan); !why.empty()) return why;
  if (std::string what = beyond_executor(model, plan.seq_len); !what.empty())
    return fmt::format("the model {}, which run does not train", what);
  if (std::string beyond = beyond_execution(plan); !beyond.empty())
    return beyond + ", and run does not train so";
  return beyond_device(plan);
}

void check_run(const Plan& plan, const Model& model) {
  check_trained_precision(model, plan);
  if (std::string what = beyond_executor(model, plan.seq_len); !what.empty()) {
    throw Error(fmt::format(
        "model '{}' {}, which the executor does not run; expected a decoder like {} or "
        "{}",
        model.name, what, fmt::join(kTrainedFamilies.begin(), kTrainedFamilies.end() - 1, ", "),
        kTrainedFamilies.back()));
  }
  if (!model.dropout.empty()) {
    throw Error(
        fmt::format("model '{}': {}, but the executor drops nothing out, expected 0 or "
                    "--dropout none",
                    model.name, model.dropout));
  }
  check_executed(plan, "a plan without it");
  if (std::string what = beyond_device(plan); !what.empty()) throw Error(what);
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

}  // namespace

Plan with_products_in_bf16(Plan plan) {
  if (plan.numerics.precision != Precision::kFp8) return plan;
  plan.numerics.precision = Precision::kBf16;
  plan.numerics.fp8_recipe.reset();
  plan.numerics.fp8_params = false;
  return plan;
}

std::string untrained_precision(const Model& model, const Plan& plan) {
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

void check_trained_precision(const Model& model, const Plan& plan) {
  const std::string why = untrained_precision(model, plan);
  if (!why.empty()) throw InvalidPlan(why);
}

}  // namespace shardwright
