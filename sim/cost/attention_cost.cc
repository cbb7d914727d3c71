// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/attention_cost.h"

#include <fmt/core.h>

#include <algorithm>

#include "sim/core/units.h"

namespace shardwright::sim {

namespace {

/// R relative to head_dim 128. Smaller heads do less product work per element of the softmax: the
/// time of a score is that of its products and a constant, c (d + d0). Between 64 and 128 the line
/// through both, larger heads stay at 1.
double head_dim_factor(double head_dim, double factor64) {
  if (head_dim >= 128) return 1;
  if (head_dim >= 64 || factor64 >= 1) return 1 - (1 - factor64) * (128 - head_dim) / 64;
  // Where d0 would be infinite the softmax is all there is.
  const double softmax = factor64 > 0.5 ? 128 * (1 - factor64) / (2 * factor64 - 1) : 1e9;
  return factor64 * head_dim / 64 * (64 + softmax) / (head_dim + softmax);
}

}  // namespace

double attention_flops(const AttentionShape& shape, bool backward) {
  const std::int64_t value_dim = shape.value_dim > 0 ? shape.value_dim : shape.head_dim;
  const double forward =
      2.0 * static_cast<double>(shape.batch_heads) * static_cast<double>(shape.query_length) *
      static_cast<double>(shape.kv_length) * static_cast<double>(shape.head_dim + value_dim) *
      (shape.causal ? 0.5 : 1.0) * shape.attended;
  return backward ? 2.5 * forward : forward;
}

double attention_time_s(const profiles::AttentionParams& params, const profiles::GpuRates& gpu,
                        const AttentionShape& shape, bool backward, int sms_available) {
  if (shape.batch_heads <= 0 || shape.query_length <= 0 || shape.kv_length <= 0 ||
      shape.head_dim <= 0)
    return 0;
  const double head_dim = static_cast<double>(shape.head_dim);
  const double ceiling_rate = backward ? params.backward_flops : params.forward_flops;
  const double s0 = backward ? params.backward_s0 : params.forward_s0;
  // A block of work walks over the keys of its queries, backward over the queries of its keys.
  const double inner =
      static_cast<double>(backward ? shape.query_length : shape.kv_length) * shape.attended;
  double rate = ceiling_rate * inner / (inner + s0);
  rate *= head_dim_factor(head_dim, params.head64_factor);
  if (!shape.causal) rate *= params.noncausal_factor;

  constexpr std::int64_t kBlockRows = 128;
  const std::int64_t rows = backward ? shape.kv_length : shape.query_length;
  const double blocks =
      static_cast<double>(ceil_div(rows, kBlockRows)) * static_cast<double>(shape.batch_heads);
  const double busy = std::min<double>(blocks, std::clamp(sms_available, 1, gpu.sm_count));
  const double compute_s = attention_flops(shape, backward) * gpu.sm_count / (rate * busy);

  // Forward reads q, k, v and writes o; backward reads those and dO and writes dq, dk, dv.
  const double q_like = static_cast<double>(shape.batch_heads * shape.query_length) * head_dim;
  const double kv_like = static_cast<double>(shape.kv_heads * shape.kv_length) * head_dim;
  const double bytes = 2 * (backward ? 4 * q_like + 4 * kv_like : 2 * q_like + 2 * kv_like);
  const double traffic_s = bytes / (gpu.hbm_bytes_per_s * gpu.hbm_efficiency);
  return params.t0_s + std::max(compute_s, traffic_s);
}

std::optional<PlannedAttention> planned_attention(const Model& model, const Plan& plan,
                                                  const profiles::Profile& profile) {
  const Gpu& gpu = profile.cluster.gpu;
  const bool runs = profile.stack.naive_attention.forward_instructions > 0 && !gpu.is_processor();
  if (!runs || plan.attention != AttentionKind::kFlash) return {};
  AttentionNeeds needs;
  needs.dtype = plan.param_dtype;
  needs.head_dim = model.head_dim;
  needs.plain_scores = model.attention_softcap == 0 && model.position != Position::kAlibi;
  needs.documents = profile.stack.packs_documents;
  needs.deterministic = plan.deterministic;
  needs.has_wide_engine = has_wide_attention_engine(gpu.architecture);
  PlannedAttention planned{attention_form(needs), {}};
  for (int i = 0; i < static_cast<int>(planned.form); ++i) {
    const auto form = static_cast<AttentionForm>(i);
    if (form == AttentionForm::kCudnnOrdered && !needs.deterministic) continue;  // as cudnn
    planned.why += fmt::format("{}{} {}", planned.why.empty() ? "" : "; ", name_of(form),
                               attention_refusal(form, needs));
  }
  return planned;
}

}  // namespace shardwright::sim
