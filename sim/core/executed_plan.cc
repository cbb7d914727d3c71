// SPDX-License-Identifier: Apache-2.0
#include "sim/core/executed_plan.h"

#include <fmt/core.h>

#include <algorithm>

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

}  // namespace

std::string beyond_execution(const Plan& plan, const Model& model) {
  const Parallelism& p = plan.parallel;
  if (p.tp * p.pp > 1 && plan.numerics.precision == Precision::kFp8)
    return fmt::format("precision is fp8 and {} is {}", p.tp > 1 ? "tp" : "pp",
                       p.tp > 1 ? p.tp : p.pp);
  if (p.pp > 1 && p.schedule() == PipelineKind::kDualpipe) return "pp_schedule is dualpipe";
  if (p.pp > 1 && model.tied_head)
    return fmt::format("pp is {} and the embedding is the head, too", p.pp);
  return beyond_data_parallel(without_executed(plan));
}

void check_executed(const Plan& plan, const Model& model, std::string_view expected) {
  const std::int64_t tp = plan.parallel.tp;
  const std::int64_t pp = plan.parallel.pp;
  if (tp * pp > 1 && plan.numerics.precision == Precision::kFp8) {
    throw Error(
        fmt::format("precision is fp8, but {} is {}, and the executor multiplies so with data "
                    "parallelism only, expected {}",
                    tp > 1 ? "tp" : "pp", std::max(tp, pp), expected));
  }
  if (pp > 1 && plan.parallel.schedule() == PipelineKind::kDualpipe) {
    throw Error(fmt::format("pp_schedule is dualpipe, which the executor does not run, expected {}",
                            expected));
  }
  if (pp > 1 && model.tied_head) {
    throw Error(
        fmt::format("pp is {}, but the embedding is the head, too, and the executor does not "
                    "exchange its gradients between stages, expected {}",
                    pp, expected));
  }
  refuse_parallelism(without_executed(plan),
                     "the executor runs data, tensor and pipeline parallelism only", expected);
}

}  // namespace shardwright
