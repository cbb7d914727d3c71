// SPDX-License-Identifier: Apache-2.0
#include "sim/trace/norm_meetings.h"

#include <algorithm>

namespace shardwright::sim {

std::map<LaneKey, Nanoseconds> norm_meetings(const Timeline& timeline,
                                             const std::function<bool(OpId)>& is_norm) {
  // All chunks of a stage are in the first one's norm.
  std::map<LaneKey, const Span*> norms;
  for (const Span& span : timeline.spans) {
    if (span.id < 0 || !is_norm(span.id)) continue;
    const Span*& norm = norms.try_emplace({span.step, span.rank}, &span).first->second;
    if (span.id < norm->id || (span.id == norm->id && span.end_ns > norm->end_ns)) norm = &span;
  }
  std::map<std::int32_t, Nanoseconds> shortest;  // by step
  for (const auto& [lane, norm] : norms) {
    const Nanoseconds takes = norm->end_ns - norm->begin_ns;
    const auto [least, fresh] = shortest.try_emplace(lane.first, takes);
    least->second = std::min(least->second, takes);
  }
  std::map<LaneKey, Nanoseconds> meetings;
  for (const auto& [lane, norm] : norms) meetings[lane] = norm->end_ns - shortest.at(lane.first);
  return meetings;
}

}  // namespace shardwright::sim
