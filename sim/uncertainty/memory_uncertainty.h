// SPDX-License-Identifier: Apache-2.0
// How far a prediction of peak memory may be off.
//
// Nothing is fitted to peaks, so that their errors are as good as held out. What a run needs beyond
// the prediction decides whether it fits, and what it needs less only what was paid for in vain:
// each side has a conformal width of its own, at half of what the interval may miss. Software of
// which peaks were measured takes the errors of runs. Of other software (its loss, what it keeps,
// its allocator's settings) nobody has checked the description: it takes those of a new source,
// drawn before its run, as the widths of times do with cells.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/profile.h"
#include "profiles/uncertainty/uncertainty.h"

namespace shardwright::sim {

/// Shares of a side's width at the published level of 90 %: beyond them lie a tenth, on the side of
/// more, and six tenths, on that of less, of what a run may need, were errors normal. In between a
/// plan is tight.
inline constexpr double kTenthBeyond = 0.779, kSixTenthsBeyond = 0.154;

/// Those of the profile's software. Static memory, which is planned to the byte and tested to be,
/// takes those of measured software; where fragmentation is estimated, runs of such software tell.
profiles::MemoryWidths memory_widths(const profiles::Profile& profile);

}  // namespace shardwright::sim
