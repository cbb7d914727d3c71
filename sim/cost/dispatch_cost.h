// SPDX-License-Identifier: Apache-2.0
// Time to bring tokens to the ranks of their experts, or results back.
//
// NCCL's all-to-all sends a row for each of a token's experts. Kernels made for experts (DeepEP,
// HybridEP) send a token once to each rank that NVLink reaches and once to each further domain,
// where it is passed on (distinct_places in sim/core/collective.h).
//
//     all-to-all     t = base + c sqrt(x) + x / bandwidth, or y / NIC where that takes longer
//     rank by rank   t = t0 + token_s tokens / SMs + max(x / min(SMs rate, link), y / NIC)
//
// x: bytes over NVLink, y: bytes to other domains, of one rank. Sources of the forms: NCCL's
// sendrecv, deepseek-ai/DeepEP; fitted by profiles/research/kernels.py. Left out: congestion
// between domains, imbalance (the caller's tokens), low-latency kernels.
#pragma once

#include <cstdint>

#include "profiles/gpu_params.h"
#include "sim/core/collective.h"

namespace shardwright::sim {

struct DispatchCost {
  double time_s = 0;
  double sent_bytes = 0;  ///< by a rank, to others
  int sms = 0;            ///< held while it runs
};

/// `nic_bytes_per_s`: what one rank reaches to other domains; 0: they are not linked.
DispatchCost exchange_cost(const profiles::ExchangeParams& params, const DispatchShape& shape,
                           double nic_bytes_per_s);

/// `sms`: what the kernel holds.
DispatchCost dispatch_cost(const profiles::DispatchParams& params, const DispatchShape& shape,
                           double nic_bytes_per_s, int sms);

}  // namespace shardwright::sim
