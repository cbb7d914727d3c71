// SPDX-License-Identifier: Apache-2.0
// Data files about hardware, software and fits: the document's schema says which reader gets it.
// What describes a thing is written and read again to the same text.
#include "profiles/cluster_file.h"
#include "profiles/gpu_cost.h"
#include "profiles/gpu_file.h"
#include "profiles/operations.h"
#include "profiles/stack_file.h"
#include "profiles/step_parameters.h"
#include "profiles/uncertainty/uncertainty.h"
#include "sim/core/base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/json_mutator.h"

namespace shardwright::fuzz {
namespace {

void fuzz_profile(std::string_view input) {
  const auto is = [&](const char* schema) { return input.find(schema) != std::string_view::npos; };
  if (is("shardwright.gpu/")) {
    const std::string text = to_json(profiles::parse_gpu(input, "gpu.json"));
    SHARDWRIGHT_CHECK(to_json(profiles::parse_gpu(text, "again")) == text, "another GPU: {}", text);
  } else if (is("shardwright.stack/")) {
    const std::string text = to_json(profiles::parse_stack(input, "stack.json"));
    SHARDWRIGHT_CHECK(to_json(profiles::parse_stack(text, "again")) == text, "another stack: {}",
                      text);
  } else if (is("shardwright.gpu_cost/")) {
    profiles::load_gpu_costs(scratch_file("costs.json", input));
  } else if (is("shardwright.operations/")) {
    profiles::load_operations(scratch_file("operations.json", input));
  } else if (is("shardwright.residuals/")) {
    profiles::load_uncertainty(scratch_file("residuals.json", input));
    profiles::load_held_out(scratch_file("residuals.json", input));
  } else if (is("shardwright.step_parameters/")) {
    profiles::load_step_parameters(scratch_file("step.json", input));
  } else {
    profiles::parse_cluster(input, "cluster.json");
  }
}

SHARDWRIGHT_FUZZ_TARGET(profile, fuzz_profile, mutate_json);

}  // namespace
}  // namespace shardwright::fuzz
