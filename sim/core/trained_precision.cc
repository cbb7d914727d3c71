// SPDX-License-Identifier: Apache-2.0
#include "sim/core/trained_precision.h"

#include <fmt/core.h>

#include <array>
#include <utility>

#include "sim/core/base/invalid_plan.h"
#include "sim/core/model.h"

namespace shardwright {
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
