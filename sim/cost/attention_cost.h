// SPDX-License-Identifier: Apache-2.0
// Time of fused (flash) attention, forward or backward.
//
//     rate(s) = R s / (s + s0)      t = t0 + flops / (rate * f(head_dim) * share of the SMs)
//
// flops = 4 batch heads q_len kv_len head_dim forward, half of it when causal, 2.5 times that
// backward (recomputed scores and four products). The saturating form fits published tables within
// 3-5 %: short sequences pay for partly masked blocks and for the prologue. A block of work is 128
// queries of one head (128 keys backward), so few heads and a short sequence leave SMs idle. A
// window leaves out blocks: work and inner length shrink by the share that is attended to. Values
// may be narrower than queries and keys (latent attention). Left out: dropout, fp8. Fitted by
// profiles/research/kernels.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "profiles/gpu_params.h"
#include "profiles/profile.h"
#include "sim/core/attention_form.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"

namespace shardwright::sim {

struct AttentionShape {
  std::int64_t batch_heads = 1;  ///< micro-batch times query heads
  std::int64_t kv_heads = 1;     ///< micro-batch times key/value heads; only for traffic
  std::int64_t query_length = 0;
  std::int64_t kv_length = 0;
  std::int64_t head_dim = 128;  ///< of queries and keys
  std::int64_t value_dim = 0;   ///< of values; 0: head_dim
  bool causal = true;
  double attended = 1;  ///< scores computed over those of the mask alone
};

double attention_flops(const AttentionShape& shape, bool backward);

/// Seconds of one call in bf16. `sms_available` as in gemm_time_s. Empty shapes take no time.
double attention_time_s(const profiles::AttentionParams& params, const profiles::GpuRates& gpu,
                        const AttentionShape& shape, bool backward, int sms_available);

// Which attention the native executor will run for a plan, as it is priced (sim/cost/op_cost.h).

struct PlannedAttention {
  AttentionForm form = AttentionForm::kCudnn;
  std::string why;  // what the faster ones refuse: "cudnn takes bf16, not fp32"; may be empty
};

/// None for other software, for processors, and where the plan keeps scores (eager).
std::optional<PlannedAttention> planned_attention(const Model& model, const Plan& plan,
                                                  const profiles::Profile& profile);

}  // namespace shardwright::sim
