// SPDX-License-Identifier: Apache-2.0
#include "cli/render/words/routing.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/render/text/quantity.h"

namespace shardwright::cli {
namespace {

/// Dollars for 10^12 tokens more than with balanced experts; 0 without a price.
double usd_per_trillion(const sim::Job& inputs, const sim::Prediction& prediction) {
  const double steps = 1e12 / (prediction.time.tokens_per_s * prediction.time.iteration_s);
  const double hours =
      steps * (prediction.time.iteration_s - prediction.routing->balanced_s) / 3600;
  return hours * static_cast<double>(prediction.plan.gpus) *
         inputs.profile.cluster.usd_per_gpu_hour;
}

}  // namespace

std::string routing_sentence(const sim::Job& inputs, const sim::Prediction& prediction) {
  if (!prediction.routing) return "";
  const sim::RoutingPrice& price = *prediction.routing;
  const auto load = prediction.plan.parallel.expert_load.value_or(ExpertLoad{});
  std::string text = fmt::format(
      "Expert load {}: in a layer the busiest rank has {:.2f} times the mean rows, in all {:.2f}; "
      "forced balance would take {} an iteration, {} less",
      to_text(load), price.busiest.of_layer, price.busiest.of_layers, duration(price.balanced_s),
      percent(1 - price.balanced_s / prediction.time.iteration_s));
  const Bytes more = prediction.memory.total_bytes - price.balanced_bytes;
  text += fmt::format(", and {} less memory", bytes(std::max<Bytes>(0, more)));
  const double usd = usd_per_trillion(inputs, prediction);
  if (usd > 0) text += fmt::format("; 10^12 tokens cost {} USD more so", thousands(usd));
  return text + ".";
}

nlohmann::ordered_json routing_json(const sim::Job& inputs, const sim::Prediction& prediction) {
  const sim::RoutingPrice& price = *prediction.routing;
  return {{"expert_load", to_text(prediction.plan.parallel.expert_load.value_or(ExpertLoad{}))},
          {"busiest_of_layer", price.busiest.of_layer},
          {"busiest_of_layers", price.busiest.of_layers},
          {"balanced_iteration_time_s", price.balanced_s},
          {"balanced_total_bytes", price.balanced_bytes},
          {"usd_per_trillion_tokens", usd_per_trillion(inputs, prediction)}};
}

}  // namespace shardwright::cli
