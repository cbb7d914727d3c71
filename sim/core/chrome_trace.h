// SPDX-License-Identifier: Apache-2.0
// Writes timelines as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.
//
// One process for every rank of every timeline, in the order given, so that predicted can stand
// above measured; in it a track for the host and one for each stream, counters of allocated and
// reserved memory and of bytes in flight, and an arrow from each gather to what uses it first. A
// track says its role: the host's, the stream's or, of a pipeline's stage, that of what it does:
// passes by chunk and micro-batch, bubbles and the tail of the step. Times are microseconds with
// three decimals: nothing is lost. A slice's args carry the operation's id, so that a reader finds
// the operation again. Events are streamed; the file is whole or not there.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/schedule.h"
#include "sim/core/timeline.h"

namespace shardwright {

/// The word of a stream's role in a trace: "compute", "communication", "side".
std::string_view name_of(StreamRole role);

struct TracedTimeline {
  std::string title;         // name of the process; ranks other than 0 are added to it
  const Schedule* schedule;  // what the spans' ids refer to; of a pipeline the first stage's of all
  const Timeline* timeline;
};

/// `notes` become the trace's metadata (otherData). Throws Error when the file cannot be written.
void write_chrome_trace(const std::filesystem::path& path,
                        std::span<const TracedTimeline> timelines,
                        const std::vector<std::pair<std::string, std::string>>& notes = {});

/// For each gather of the step the first kernel that waits for it, in host order. Gathers that
/// nothing waits for within the step (of a following step's parameters) are left out.
struct GatherUse {
  OpId gather = 0;
  OpId use = 0;
};
std::vector<GatherUse> gather_uses(const Schedule& schedule);

}  // namespace shardwright
