// SPDX-License-Identifier: Apache-2.0
// Which attention the native executor will run for a plan, as it is priced (sim/cost/work_time.h).
#pragma once

#include <optional>
#include <string>

#include "profiles/profile.h"
#include "sim/core/attention_form.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"

namespace shardwright::sim {

struct PlannedAttention {
  AttentionForm form = AttentionForm::kCudnn;
  std::string why;  // what the faster ones refuse: "cudnn takes bf16, not fp32"; may be empty
};

/// None for other software, for processors, and where the plan keeps scores (eager).
std::optional<PlannedAttention> planned_attention(const Model& model, const Plan& plan,
                                                  const profiles::Profile& profile);

}  // namespace shardwright::sim
