// SPDX-License-Identifier: Apache-2.0
// What a trainer printed: steps last longer than 0, and their median lies among them.
#include "profiles/import/step_log.h"

#include <algorithm>

#include "sim/core/base/check.h"
#include "tests/fuzz/fuzz_target.h"

namespace shardwright::fuzz {
namespace {

void fuzz_step_log(std::string_view input) {
  const profiles::StepLog log = profiles::read_step_log(scratch_file("train.log", input), 8192);
  const auto [least, most] = std::minmax_element(log.seconds.begin(), log.seconds.end());
  SHARDWRIGHT_CHECK(*least > 0, "a step of {} s", *least);
  const profiles::MedianStep median = profiles::median_step(log, 5);
  SHARDWRIGHT_CHECK(median.seconds > 0.999 * *least && median.seconds < 1.001 * *most,
                    "a median of {} s", median.seconds);
}

SHARDWRIGHT_FUZZ_TARGET(step_log, fuzz_step_log, nullptr);

}  // namespace
}  // namespace shardwright::fuzz
