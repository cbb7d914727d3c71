// SPDX-License-Identifier: Apache-2.0
#include "profiles/usual_plan.h"

#include "profiles/data_dir.h"
#include "sim/core/json_file.h"

namespace shardwright::profiles {

UsualPlan usual_plan(const std::string& stack) {
  static const JsonFile file = JsonFile::load(data_dir() / "usual_plans.json");
  for (const JsonReader& entry : file.root().require_array("plans")) {
    if (entry.require<std::string>("stack") != stack) continue;
    UsualPlan plan;
    if (entry.has("reduce_dtype")) {
      plan.reduce_dtype = dtype_from(entry.require<std::string>("reduce_dtype"));
      if (!plan.reduce_dtype) entry.fail("reduce_dtype", "fp32 or bf16");
    }
    plan.fp8_params = entry.optional<bool>("fp8_params", false);
    return plan;
  }
  return {};
}

}  // namespace shardwright::profiles
