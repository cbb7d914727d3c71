// SPDX-License-Identifier: Apache-2.0
// What a sentence about a size that does not divide something offers instead.
#pragma once

#include <cstdint>
#include <string>

namespace shardwright {

/// The divisors of `whole` next to `value`: "4 or 8".
std::string nearest_divisors(std::int64_t value, std::int64_t whole);

}  // namespace shardwright
