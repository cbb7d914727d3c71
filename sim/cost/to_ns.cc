// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/to_ns.h"

#include <fmt/core.h>

#include "sim/core/base/error.h"

namespace shardwright::sim {

void refuse_duration(const char* what, double seconds) {
  throw Error(
      fmt::format("{} would take {:.3g} s: a rate or an efficiency of the cluster, the stack "
                  "or --set is too low, expected those of a machine",
                  what, seconds));
}

}  // namespace shardwright::sim
