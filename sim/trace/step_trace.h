// SPDX-License-Identifier: Apache-2.0
// One own trace, predicted or measured, as types: the one reader of what `predict --trace` and
// `run --trace` write.
//
// A slice of a trace says in words which operation it was; here it is a Span of a Timeline, by
// operation, rank, step and stream, and what its operation is stands once in a table. What the host
// did is apart (Timeline::host): it is told by the role of its track, or in traces of versions that
// wrote none by the track's name. So a trace that was read and a step that was just simulated or
// measured are the same thing to whoever compares (trace_comparison.h), fits (observations.h) or
// draws.
//
// A file may hold several timelines, side by side, each with a process per rank ("measured,
// rank 3"), of pipelines with what its stage does (Timeline::passes). The first one that has
// operations is taken, the others are named in `left_out`.
//
// Traces come from strangers. Numbers out of range, kinds that nobody knows and an operation that
// is two things are errors that name the file; a plan that claims far more operations than the
// trace has slices is refused before it is expanded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/core/chrome_trace.h"
#include "sim/core/model.h"
#include "sim/core/schedule.h"
#include "sim/core/timeline.h"

namespace shardwright::sim {

struct TracedOperation {
  std::string name;  // "layer17.backward.norm"
  OpKind kind = OpKind::kHostWork;
  Phase phase = Phase::kForward;
  std::int32_t layer = -1;                        // -1: no layer's
  std::int32_t stage = 0;                         // of a pipeline
  std::optional<CommGroup> group = std::nullopt;  // of what communicates, where that is known
  std::int32_t peer = -1, channel = -1;           // of messages between stages, as in Op

  bool communicates() const { return group || is_collective(kind); }
};

/// One execution of an operation: its id, the rank and the step.
using SpanKey = std::tuple<OpId, std::int32_t, std::int32_t>;

struct StepTrace {
  std::string name;                            // what errors call it: the file
  std::optional<TraceIdentity> identity;       // none: written without
  TraceOrigin origin;                          // where it was measured; empty: predicted
  std::map<OpId, TracedOperation> operations;  // those that have spans
  Timeline timeline;                           // its spans and those of the host have operations
  std::vector<StreamRole> roles;               // of Timeline::streams
  /// By an operation that waits for other ranks: when a receive's message was sent, when the last
  /// rank came to the gradient norm.
  std::map<SpanKey, Nanoseconds> ready_ns;
  std::int64_t foreign = 0;           // kernels of no operation
  double foreign_s = 0;               // what they took
  std::vector<std::string> left_out;  // sentences on what of the file is not here
};

/// Most slices of a file.
inline constexpr std::size_t kMostSlices = 20'000'000;

/// Throws Error when the file is no trace, is damaged, or has no operations.
StepTrace read_step_trace(const std::filesystem::path& file);

/// The same of a timeline in memory, of the schedules of its stages.
StepTrace step_trace_of(std::span<const Schedule> stages, Timeline timeline, std::string name);

/// When an operation has all ranks that it waits for, not before its begin.
Nanoseconds ready_ns(const StepTrace& trace, const Span& span);

/// What `rank` did. A trace of one rank stays as it is: all ranks do the same in a prediction.
/// Throws Error when there are several ranks and `rank` is none of them.
StepTrace of_rank(StepTrace trace, std::int64_t rank);

/// The model in the trace's notes. `name` stands for the trace in errors.
Model model_of(const TraceIdentity& identity, const std::string& name);

/// Throws Error when both traces say of which model they are, and it is not the same.
void expect_same_model(const StepTrace& trace, const StepTrace& with);

/// One rank in one step.
struct Lane {
  std::vector<const Span*> spans;  // by begin
  std::vector<const Span*> host;
  std::vector<const PassSpan*> passes;  // by begin
};
using LaneKey = std::pair<std::int32_t, std::int32_t>;  // step and rank
std::map<LaneKey, Lane> lanes_of(const Timeline& timeline);

// Chrome traces, event by event: what sim/core/chrome_trace.h writes, and others as far as they
// follow the format, plain or gzip.
//
// A trace may hold gigabytes, so that its document never stands in memory whole. What events mean
// is the business of who takes them.

/// Calls `take` with each event, in the file's order. Returns the notes (otherData), texts and
/// numbers alike as text. Throws Error when the file is no Chrome trace or ends early.
std::map<std::string, std::string> for_each_event(
    const std::filesystem::path& file, const std::function<void(nlohmann::json& event)>& take);

/// Members of an event, or `fallback` where there is none of that type.
std::string text_of(const nlohmann::json& object, const char* key);
double number_of(const nlohmann::json& object, const char* key, double fallback);
std::int64_t integer_of(const nlohmann::json& object, const char* key, std::int64_t fallback);

/// Writes the events of several traces into one, the processes of the first file above those of the
/// second and so on. Processes and flows are numbered anew. `titles`, one for each, go before the
/// names of their processes.
void merge_chrome_traces(const std::vector<std::filesystem::path>& paths,
                         const std::vector<std::string>& titles,
                         const std::filesystem::path& target);

// The schedules of a trace: its plan lowered again, so that each slice finds its operation.

/// The plan in the trace, lowered again with the stack that ships under its name: a schedule for
/// each stage. Throws Error when there is none, or when it is not this trace's: it has many more
/// operations than there are spans, or others.
std::vector<Schedule> schedules_of(const StepTrace& trace);

}  // namespace shardwright::sim
