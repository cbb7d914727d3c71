// SPDX-License-Identifier: Apache-2.0
#include "cli/render/words/host_share.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "cli/render/text/quantity.h"

namespace shardwright::cli {
namespace {

/// That a rank holds at a time.
double micro_batch_tokens(const Plan& plan) {
  return static_cast<double>(plan.seq_len * plan.micro_batch) /
         static_cast<double>(plan.parallel.cp);
}

}  // namespace

std::string host_sentence(const sim::Prediction& prediction) {
  const sim::HostShare& host = prediction.host;
  const double tokens = micro_batch_tokens(prediction.plan);
  const double crossing = host.crossing_tokens(tokens);
  if (crossing <= 0) return "";
  const std::string_view regime = name_of(host.regime());
  const std::string both = fmt::format("the host issues in {} what the device does in {}",
                                       duration(host.issues_s), duration(host.device_s));
  const std::string at = fmt::format("about {} tokens a micro-batch (here {})", thousands(crossing),
                                     thousands(tokens));
  return host.regime() == sim::HostRegime::kHost
             ? fmt::format("The step is {}: {}; it keeps up from {} on.", regime, both, at)
             : fmt::format("The step is {}: {}; below {} it would be the host's.", regime, both,
                           at);
}

nlohmann::ordered_json host_json(const sim::Prediction& prediction) {
  const sim::HostShare& host = prediction.host;
  return {{"regime", name_of(host.regime())},
          {"issues_s", host.issues_s},
          {"device_s", host.device_s},
          {"waited_s", host.waited_s},
          {"crossing_tokens", host.crossing_tokens(micro_batch_tokens(prediction.plan))}};
}

}  // namespace shardwright::cli
