// SPDX-License-Identifier: Apache-2.0
#include "sim/pipeline/opened_chunk.h"

#include <algorithm>

namespace shardwright::sim {
namespace {

/// An operation of a pass and when it runs, from the pass's begin.
struct Run {
  const Op* op = nullptr;
  std::int32_t unit = 0;
  bool communication = false;
  Nanoseconds begin_ns = 0, end_ns = 0;

  bool moves() const { return op->deferrable && !communication; }
};

std::vector<Run> runs_of(ChunkTimer& timer, TimedChunk& chunk, ChunkSection pass) {
  std::vector<Run> runs;
  for (const PassOperation& operation : timer.pass_operations(chunk, pass)) {
    if (operation.end_ns == operation.begin_ns) continue;
    const Op& op = chunk.schedule.ops[operation.at.op];
    const StreamRole role = chunk.schedule.streams[op.stream].role;
    runs.push_back({&op, operation.at.unit, role == StreamRole::kCommunication, operation.begin_ns,
                    operation.end_ns});
  }
  std::stable_sort(runs.begin(), runs.end(),
                   [](const Run& a, const Run& b) { return a.begin_ns < b.begin_ns; });
  return runs;
}

/// The same pass without the operations that a schedule moves, closed up, or those alone.
std::vector<Run> part_of(const std::vector<Run>& runs, bool delayed) {
  const auto moved_before = [&](Nanoseconds at) {
    Nanoseconds moved = 0;
    for (const Run& run : runs) {
      if (run.moves())
        moved += std::clamp<Nanoseconds>(at - run.begin_ns, 0, run.end_ns - run.begin_ns);
    }
    return moved;
  };
  std::vector<Run> part;
  for (const Run& run : runs) {
    if (run.moves() != delayed) continue;
    Run& kept = part.emplace_back(run);
    const Nanoseconds before = moved_before(run.begin_ns);
    kept.begin_ns = delayed ? before : run.begin_ns - before;
    kept.end_ns =
        delayed ? before + run.end_ns - run.begin_ns : run.end_ns - moved_before(run.end_ns);
  }
  return part;
}

/// Puts the operations of a pass between its begin and its end: what the engine timed one pass of,
/// the step has many in a row of.
void open(const std::vector<Run>& runs, const Schedule& schedule, const ChunkContent& content,
          const ActionSpan& span, std::vector<OperationSlice>& out) {
  if (runs.empty()) return;
  const Nanoseconds first = runs.front().begin_ns;
  Nanoseconds last = first;
  for (const Run& run : runs) last = std::max(last, run.end_ns);
  if (last == first) return;
  const double scale =
      std::min(1.0, static_cast<double>(span.end - span.start) / static_cast<double>(last - first));
  const auto placed = [&](Nanoseconds at) {
    return std::min(span.end,
                    span.start + static_cast<Nanoseconds>(scale * static_cast<double>(at - first)));
  };
  for (const Run& run : runs) {
    OperationSlice& slice = out.emplace_back();
    slice.op = *run.op;
    slice.phase = run.op->phase;
    const bool is_layer = run.unit >= 1 && run.unit <= schedule.layers;
    slice.layer = is_layer ? content.first_layer + run.unit - 1 : -1;
    slice.communication = run.communication;
    slice.begin_ns = placed(run.begin_ns);
    slice.end_ns = placed(run.end_ns);
  }
}

}  // namespace

void open_chunks(ChunkTimer& timer, PipelineRecord& record, ParallelTimeline& timeline) {
  const PipelineShape& shape = record.shape;
  const auto part_at = [&](std::int32_t stage, std::int32_t chunk) -> const ChunkContent& {
    return of_chunk(timeline.parts, shape, {stage, chunk});
  };
  for (std::int32_t s = 0; s < shape.stages; ++s) {
    StageTimeline& stage = timeline.stages[static_cast<std::size_t>(s)];
    stage.opened_micro_batch = shape.passes() / 2;
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      if (part_at(s, c).head) stage.opened_chunk = c;
    }
  }
  for (const ActionSpan& span : record.pipeline.spans) {
    StageTimeline& stage = timeline.stages[static_cast<std::size_t>(span.stage)];
    const Action& action = span.action;
    if (action.chunk != stage.opened_chunk || action.micro_batch != stage.opened_micro_batch)
      continue;
    TimedChunk& chunk = record.timed[of_chunk(record.chunks, shape, {span.stage, action.chunk})];
    const bool forward = action.kind == PassKind::kForward;
    std::vector<Run> runs =
        runs_of(timer, chunk, forward ? ChunkSection::kForward : ChunkSection::kBackward);
    if (!forward && action.kind != PassKind::kBackward)
      runs = part_of(runs, action.kind == PassKind::kBackwardWeight);
    open(runs, chunk.schedule, part_at(span.stage, action.chunk), span, stage.operations);
  }
}

}  // namespace shardwright::sim
