// SPDX-License-Identifier: Apache-2.0
#include "sim/core/executed_plan.h"

#include <fmt/core.h>

#include <optional>

#include "sim/core/base/error.h"
#include "sim/core/parallelism.h"
#include "sim/core/trained_precision.h"

namespace shardwright {

namespace {

/// Of a plan that the executor runs nothing is left that goes beyond data parallelism.
Plan without_executed(const Plan& plan) {
  Plan rest = with_products_in_bf16(plan);
  Parallelism& p = rest.parallel;
  p.tp = p.pp = p.virtual_stages = 1;
  p.sp.reset();
  p.pp_schedule.reset();
  p.pp_layout.clear();
  p.rank_order = Parallelism::kUsualOrder;
  return rest;
}

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
  return beyond_data_parallel(without_executed(plan));
}

void check_executed(const Plan& plan, std::string_view expected) {
  if (const auto beyond = beyond_model_parallel(plan))
    throw Error(fmt::format("{}, expected {}", beyond->sentence, expected));
  refuse_parallelism(without_executed(plan),
                     "the executor runs data, tensor and pipeline parallelism only", expected);
}

std::string untrained(const Plan& plan, const Model& model) {
  if (std::string why = untrained_precision(model, plan); !why.empty()) return why;
  const std::string beyond = beyond_execution(plan);
  return beyond.empty() ? "" : beyond + ", and run does not train so";
}

void check_run(const Plan& plan, const Model& model) {
  check_trained_precision(model, plan);
  check_executed(plan, "a plan without it");
}

}  // namespace shardwright
