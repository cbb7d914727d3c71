// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/routing_price.h"

#include "sim/program/expert_program.h"

namespace shardwright::sim {

std::optional<RoutingPrice> routing_price(Predictor& predictor, const Prediction& prediction) {
  const Plan& plan = prediction.plan;
  const ExpertLoad load = plan.parallel.expert_load.value_or(ExpertLoad{});
  const bool pays = predictor.model().is_moe() && !plan.parallel.expert_capacity &&
                    load.routing != Routing::kBalanced;
  if (!pays) return std::nullopt;
  RoutingPrice price;
  price.busiest = busiest_of(predictor.model(), plan, predictor.profile().stack);
  if (price.busiest.of_layer <= 1) return std::nullopt;
  Plan balanced = plan;
  balanced.parallel.expert_load = ExpertLoad{Routing::kBalanced, {}, {}};
  const Prediction even = predictor.predict(balanced);
  price.balanced_s = even.time.iteration_s;
  price.balanced_bytes = even.memory.total_bytes;
  return price;
}

}  // namespace shardwright::sim
