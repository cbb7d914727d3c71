// SPDX-License-Identifier: Apache-2.0
// How good predictions are of each framework, the newest release first: a mean over all rows mixes
// software of this year with some that nobody installs any more.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "profiles/uncertainty/uncertainty.h"
#include "sim/score/validation.h"

namespace shardwright::sim {

/// Times that are not suspect, of releases of one year.
struct ReleaseScore {
  int year = 0;                       // 0: the releases name none
  std::vector<std::string> releases;  // as the tables call them, newest first; "": not stated
  ErrorScore time;
  std::int64_t inside_interval = 0;  // of time.n
  ErrorScore source_left_out;        // of the runs that have been predicted so
};

struct FrameworkScore {
  std::string framework;  // its stack, or what the table calls a stack that another stands for
  ReleaseScore all;       // its year is that of the newest release
  std::vector<ReleaseScore> years;  // newest first, without a year last
};

/// Frameworks with the newest release first, those with no date last. `held_out` are runs as they
/// were predicted without their source; those of the validation are found by what names a run.
std::vector<FrameworkScore> score_frameworks(const Validation& validation,
                                             std::span<const profiles::HeldOutRun> held_out);

}  // namespace shardwright::sim
