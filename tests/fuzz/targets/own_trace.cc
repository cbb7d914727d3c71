// SPDX-License-Identifier: Apache-2.0
// A trace of this program: read as a step, with the plan in its notes as observations, and merged
// with itself.
#include "sim/core/base/error.h"
#include "sim/trace/observations.h"
#include "sim/trace/step_trace.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/json_mutator.h"
#include "tests/fuzz/observations.h"

namespace shardwright::fuzz {
namespace {

void fuzz_own_trace(std::string_view input) {
  const std::filesystem::path file = scratch_file("trace.json", input);
  try {
    sim::merge_chrome_traces({file, file}, {"a", "b"}, scratch_folder() / "both.json");
  } catch (const Error&) {
    // read_step_trace has more to say.
  }
  check_observations(sim::observations_of(sim::read_step_trace(file)));
}

SHARDWRIGHT_FUZZ_TARGET(own_trace, fuzz_own_trace, mutate_json);

}  // namespace
}  // namespace shardwright::fuzz
