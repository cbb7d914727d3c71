// SPDX-License-Identifier: Apache-2.0
#include "profiles/usual_plan.h"

#include <algorithm>

#include "profiles/data_dir.h"
#include "sim/core/json_file.h"

namespace shardwright::profiles {

UsualPlan usual_plan(const std::string& stack) {
  static const JsonFile file = JsonFile::load(data_dir() / "usual_plans.json");
  for (const JsonReader& entry : file.root().require_array("plans")) {
    const auto stacks = entry.require_array("stacks");
    const bool mentioned = std::any_of(stacks.begin(), stacks.end(), [&](const JsonReader& name) {
      return name.value<std::string>() == stack;
    });
    if (!mentioned) continue;
    UsualPlan plan;
    if (entry.has("reduce_dtype")) {
      plan.reduce_dtype = dtype_from(entry.require<std::string>("reduce_dtype"));
      if (!plan.reduce_dtype) entry.fail("reduce_dtype", "fp32 or bf16");
    }
    plan.fp8_params = entry.optional<bool>("fp8_params", false);
    plan.recompute = entry.optional<std::string>("recompute", "");
    return plan;
  }
  return {};
}

}  // namespace shardwright::profiles
