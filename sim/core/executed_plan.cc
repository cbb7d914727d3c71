// SPDX-License-Identifier: Apache-2.0
#include "sim/core/executed_plan.h"

#include <fmt/core.h>

#include "sim/core/base/error.h"
#include "sim/core/parallelism.h"
#include "sim/core/trained_precision.h"

namespace shardwright {

void check_executed(const Plan& plan, const Model& model, std::string_view expected) {
  const std::int64_t tp = plan.parallel.tp;
  if (tp > 1 && plan.numerics.precision == Precision::kFp8) {
    throw Error(
        fmt::format("precision is fp8, but tp is {}, and the executor multiplies so with data "
                    "parallelism only, expected {}",
                    tp, expected));
  }
  if (tp > model.kv_heads) {
    throw Error(
        fmt::format("tp is {}, but the executor runs at most as many tensor ranks as the {} "
                    "key/value heads, expected {}",
                    tp, model.kv_heads, expected));
  }
  Plan rest = with_products_in_bf16(plan);
  rest.parallel.tp = 1;
  rest.parallel.sp.reset();
  rest.parallel.rank_order = Parallelism::kUsualOrder;
  refuse_parallelism(rest, "the executor runs data and tensor parallelism only", expected);
}

}  // namespace shardwright
