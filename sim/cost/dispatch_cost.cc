// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/dispatch_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardwright::sim {
namespace {

double real(std::int64_t value) {
  return static_cast<double>(value);
}

/// Seconds for what leaves the domain.
double network_s(double bytes, double nic_bytes_per_s) {
  if (bytes <= 0) return 0;
  return nic_bytes_per_s > 0 ? bytes / nic_bytes_per_s : std::numeric_limits<double>::infinity();
}

/// Ranks of a domain receive together what comes from outside, so their numbers of rows even out.
double busiest_domain(const DispatchShape& shape) {
  return 1 + (shape.busiest - 1) / std::sqrt(real(shape.ranks_in_domain));
}

}  // namespace

DispatchCost exchange_cost(const profiles::ExchangeParams& params, const DispatchShape& shape,
                           double nic_bytes_per_s) {
  DispatchCost cost;
  if (shape.ranks <= 1 || shape.tokens <= 0) return cost;
  const double rows = shape.tokens * real(shape.per_token) * shape.token_bytes;
  const double inside = rows * real(shape.ranks_in_domain - 1) / real(shape.ranks);
  const double outside = rows * real(shape.ranks - shape.ranks_in_domain) / real(shape.ranks);
  cost.sent_bytes = inside + outside;
  cost.time_s = params.base_s + std::max(params.sqrt_s * std::sqrt(shape.busiest * inside) +
                                             shape.busiest * inside / params.bytes_per_s,
                                         network_s(shape.busiest * outside, nic_bytes_per_s));
  cost.sms = 16;  // NCCL's channels of sendrecv
  return cost;
}

DispatchCost dispatch_cost(const profiles::DispatchParams& params, const DispatchShape& shape,
                           double nic_bytes_per_s, int sms) {
  DispatchCost cost;
  if (shape.ranks <= 1 || shape.tokens <= 0) return cost;
  const double token = shape.tokens * shape.token_bytes;
  const std::int64_t domains = std::max<std::int64_t>(1, shape.ranks / shape.ranks_in_domain);
  const double ranks = distinct_places(shape.experts, shape.per_token, shape.ranks);
  double reached = distinct_places(shape.experts, shape.per_token, domains);
  if (shape.domains_per_token > 0) {
    reached = std::min(reached, real(shape.domains_per_token));
  }
  const double outside = token * reached * real(domains - 1) / real(domains);
  // What other domains send here is passed on inside, so every copy but those that stay crosses
  // NVLink once.
  const double inside = token * ranks;
  const double rate = std::min(sms * params.sm_bytes_per_s, params.link_bytes_per_s);
  cost.time_s = params.t0_s + params.token_s * shape.tokens / std::max(sms, 1) +
                std::max(shape.busiest * inside / rate,
                         busiest_domain(shape) * network_s(outside, nic_bytes_per_s));
  cost.sent_bytes = inside * real(shape.ranks - 1) / real(shape.ranks);
  cost.sms = sms;
  return cost;
}

}  // namespace shardwright::sim
