// SPDX-License-Identifier: Apache-2.0
// From the simulator's whole nanoseconds to the seconds in which answers are given.
#pragma once

#include "sim/core/units.h"

namespace shardwright {

inline double seconds_of(Nanoseconds ns) {
  return static_cast<double>(ns) * 1e-9;
}

}  // namespace shardwright
