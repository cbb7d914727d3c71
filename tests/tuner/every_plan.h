// SPDX-License-Identifier: Apache-2.0
// A space written out, for tests that look at all of it.
#pragma once

#include <vector>

#include "tuner/search/space.h"

namespace shardwright::tuner {

inline std::vector<Plan> every_plan(const Space& space) {
  std::vector<Plan> plans;
  for (const Plan& plan : space.plans) {
    if (space.recomputes_nothing) plans.push_back(plan);
    for (const Recomputation& one : space.recomputations) {
      for (std::int64_t step = 1; step <= space.steps(plan, one); ++step)
        plans.push_back(space.at(plan, one, step));
    }
  }
  return plans;
}

}  // namespace shardwright::tuner
