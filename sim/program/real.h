// SPDX-License-Identifier: Apache-2.0
// Counts and sizes as real numbers, in formulas.
#pragma once

#include <cstdint>

namespace shardwright::sim {

inline double f(std::int64_t value) {
  return static_cast<double>(value);
}

}  // namespace shardwright::sim
