// SPDX-License-Identifier: Apache-2.0
// A plan file. What was read is written and read again to the same text.
#include "sim/core/base/check.h"
#include "sim/core/plan_json.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/json_mutator.h"

namespace shardwright::fuzz {
namespace {

void fuzz_plan(std::string_view input) {
  const PlanDocument plan = parse_plan(input, "plan.json");
  const std::string text = plan_text(plan);
  SHARDWRIGHT_CHECK(plan_text(parse_plan(text, "again")) == text, "another plan: {}", text);
  constexpr std::int64_t kLayers = 32, kGpusPerNode = 8;
  check_plan(plan.plan, kLayers, kGpusPerNode);
}

SHARDWRIGHT_FUZZ_TARGET(plan, fuzz_plan, mutate_json);

}  // namespace
}  // namespace shardwright::fuzz
