// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

namespace shardwright::exec::testing {

/// Whether tests of layouts try all that they know (scripts/slow_checks layouts), not only those
/// that tell them apart.
inline bool tries_all_layouts() {
  return std::getenv("SHARDWRIGHT_LAYOUTS") != nullptr;
}

}  // namespace shardwright::exec::testing
