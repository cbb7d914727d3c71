// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/planned_attention.h"

#include <fmt/core.h>

namespace shardwright::sim {

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
