// SPDX-License-Identifier: Apache-2.0
#include "cli/trace/timeline_trace.h"

#include <string>
#include <utility>
#include <vector>

namespace shardwright::cli {

ReadTrace trace_of(const Schedule& schedule, const Timeline& timeline) {
  constexpr std::int64_t kProcess = 1;
  constexpr double kMicro = 1e-3;  // of a nanosecond
  ReadTrace trace;
  trace.processes[kProcess] = timeline.source;
  trace.tracks[{kProcess, 0}] = "host";
  for (std::size_t i = 0; i < timeline.streams.size(); ++i)
    trace.tracks[{kProcess, static_cast<std::int64_t>(i) + 1}] = timeline.streams[i];
  std::vector<TraceSlice> operations;
  for_each_op(schedule, [&](const OpInstance& at, const Op& op) {
    TraceSlice& slice = operations.emplace_back();
    slice.process = kProcess;
    slice.name = describe(schedule, at);
    slice.id = at.id;
    slice.phase = name_of(op.phase);
    slice.kind = name_of(op.kind);
    slice.unit = unit_name(schedule, at.unit);
    slice.micro_step = at.micro_step;
  });
  const auto add = [&](const Span& span, std::int64_t track) {
    if (span.id < 0 || static_cast<std::size_t>(span.id) >= operations.size()) return;
    TraceSlice slice = operations[static_cast<std::size_t>(span.id)];
    slice.track = track;
    slice.begin_us = kMicro * static_cast<double>(span.begin_ns);
    slice.duration_us = kMicro * static_cast<double>(span.end_ns - span.begin_ns);
    trace.slices.push_back(std::move(slice));
  };
  for (const Span& span : timeline.host) add(span, 0);
  for (const Span& span : timeline.spans) add(span, span.stream + 1);
  return trace;
}

}  // namespace shardwright::cli
