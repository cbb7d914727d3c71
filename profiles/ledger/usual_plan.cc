// SPDX-License-Identifier: Apache-2.0
#include "profiles/ledger/usual_plan.h"

#include <algorithm>

#include "profiles/data_dir.h"
#include "sim/core/base/json_file.h"

namespace shardwright::profiles {
namespace {

bool mentions(const JsonReader& entry, std::string_view list, std::string_view name) {
  const auto names = entry.require_array(list);
  return std::any_of(names.begin(), names.end(),
                     [&](const JsonReader& one) { return one.value<std::string>() == name; });
}

}  // namespace

UsualPlan usual_plan(const std::string& stack, std::string_view architecture,
                     std::string_view gpu) {
  static const JsonFile file = JsonFile::load(data_dir() / "published" / "usual_plans.json");
  UsualPlan plan;
  for (const JsonReader& entry : file.root().require_array("plans")) {
    if (!mentions(entry, "stacks", stack)) continue;
    if (entry.has("architectures") && !mentions(entry, "architectures", architecture)) continue;
    if (entry.has("gpus") && !mentions(entry, "gpus", gpu)) continue;
    if (entry.has("reduce_dtype")) {
      plan.reduce_dtype = dtype_from(entry.require<std::string>("reduce_dtype"));
      if (!plan.reduce_dtype) entry.fail("reduce_dtype", "fp32 or bf16");
    }
    plan.fp8_params = entry.optional<bool>("fp8_params", plan.fp8_params);
    plan.recompute = entry.optional<std::string>("recompute", plan.recompute);
    if (entry.has("dispatcher")) {
      plan.dispatcher = parallel_word<Dispatcher>(entry.require<std::string>("dispatcher"));
      if (!plan.dispatcher) entry.fail("dispatcher", words_of<Dispatcher>());
    }
  }
  return plan;
}

}  // namespace shardwright::profiles
