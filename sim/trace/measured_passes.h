// SPDX-License-Identifier: Apache-2.0
// What ranks of a pipeline measured, as passes: which ran when on each rank, and what it waited for
// in between.
#pragma once

#include <vector>

#include "sim/core/rank_mesh.h"
#include "sim/core/schedule.h"
#include "sim/core/timeline.h"

namespace shardwright::sim {

/// Fills stages and passes of a measured timeline, whose spans are of all ranks, from the stages'
/// schedules. A pass lasts from its first to its last operation on the compute stream; what is
/// between passes is a bubble, also until all ranks have come to the norm behind the last one, and
/// what follows is the optimizer's.
void add_measured_passes(const std::vector<Schedule>& stages, const RankMesh& mesh,
                         Timeline& timeline);

}  // namespace shardwright::sim
