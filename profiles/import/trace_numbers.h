// SPDX-License-Identifier: Apache-2.0
// Numbers as traces hold them: plain or quoted, times in microseconds with decimals.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "sim/core/units.h"

namespace shardwright::profiles {

/// Microseconds in decimal notation to nanoseconds, exactly: time stamps since 1970 with three
/// decimals are more than a double holds. None for text that is no number or overflows.
std::optional<Nanoseconds> microseconds_to_ns(std::string_view text);

/// An integer; fractions are rounded. None for text that is no number or overflows.
std::optional<std::int64_t> integer_of(std::string_view text);

}  // namespace shardwright::profiles
