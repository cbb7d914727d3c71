// SPDX-License-Identifier: Apache-2.0
// Costs are real seconds; timelines count whole nanoseconds.
#pragma once

#include <cmath>

#include "sim/core/units.h"

namespace shardwright::sim {

inline Nanoseconds to_ns(double seconds) {
  return static_cast<Nanoseconds>(std::llround(seconds * 1e9));
}

}  // namespace shardwright::sim
