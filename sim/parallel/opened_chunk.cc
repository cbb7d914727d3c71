// SPDX-License-Identifier: Apache-2.0
#include "sim/parallel/opened_chunk.h"

#include <algorithm>
#include <array>
#include <optional>

#include "sim/cost/to_ns.h"

namespace shardwright::sim {
namespace {

/// A list of operations and when they run.
struct TimedList {
  Ops ops;
  std::vector<OpRun> runs;
  double device_s = 0;
};

struct TimedBody {
  TimedList forward, recompute, backward;
};

/// The same list without the operations that a schedule moves, closed up, or those alone.
TimedList part_of(const TimedList& list, bool delayed) {
  const auto moves = [&](const OpRun& run) {
    return list.ops[run.op].deferrable && !run.communication;
  };
  /// Time of moved operations before `at`.
  const auto moved_before = [&](double at) {
    double moved = 0;
    for (const OpRun& run : list.runs) {
      if (moves(run)) moved += std::clamp(at - run.begin_s, 0.0, run.end_s - run.begin_s);
    }
    return moved;
  };
  TimedList part;
  part.ops = list.ops;
  for (const OpRun& run : list.runs) {
    if (moves(run) != delayed) continue;
    const double before = moved_before(run.begin_s);
    part.runs.push_back(delayed ? OpRun{run.op, false, before, before + run.end_s - run.begin_s}
                                : OpRun{run.op, run.communication, run.begin_s - before,
                                        run.end_s - moved_before(run.end_s)});
  }
  const double moved = moved_before(list.device_s);
  part.device_s = delayed ? moved : list.device_s - moved;
  return part;
}

class ChunkOpener {
 public:
  ChunkOpener(const Model& model, const profiles::Profile& profile, const Plan& plan,
              CudaGraphs graphs)
      : writer_(model, plan, profile.stack, profile.cluster.gpu), costs_(profile) {
    costs_.place(layout_of(plan, profile.cluster), graphs);
  }

  /// The operations of a pass that runs from `begin` to `end`.
  void open(const ChunkContent& content, PassKind pass, Nanoseconds begin, Nanoseconds end,
            std::vector<OperationSlice>& out) {
    struct Placed {
      BodyKind kind;
      std::int64_t layer;
    };
    std::vector<Placed> order;
    std::int64_t layer = content.first_layer;
    for (const BodyCount& body : bodies_of(content)) {
      const bool numbered = body.kind != BodyKind::kEmbedding && body.kind != BodyKind::kHead &&
                            body.kind != BodyKind::kPrediction;
      for (std::int64_t i = 0; i < body.count; ++i)
        order.push_back({body.kind, numbered ? layer++ : -1});
    }
    if (pass != PassKind::kForward) std::reverse(order.begin(), order.end());
    double whole_s = 0;
    for (const Placed& body : order) {
      for (const auto& [list, phase] : lists_of(body.kind, pass)) whole_s += list->device_s;
    }
    if (whole_s <= 0) return;
    // What is longer than the operations is spread behind the bodies; a pass of which the schedule
    // has put something off holds them closer together.
    const double ratio = static_cast<double>(end - begin) * 1e-9 / whole_s;
    const double inner = std::min(1.0, ratio), outer = std::max(1.0, ratio);
    double at_s = 0;
    for (const Placed& body : order) {
      double inside_s = at_s;
      for (const auto& [list, phase] : lists_of(body.kind, pass)) {
        for (const OpRun& run : list->runs) {
          OperationSlice& slice = out.emplace_back();
          slice.op = list->ops[run.op];
          slice.phase = phase;
          slice.body = body.kind;
          slice.layer = body.layer;
          slice.communication = run.communication;
          slice.begin_ns = within(begin, inside_s + inner * run.begin_s, end);
          slice.end_ns = within(begin, inside_s + inner * run.end_s, end);
        }
        inside_s += inner * list->device_s;
      }
      at_s += (inside_s - at_s) * outer;
    }
  }

 private:
  static Nanoseconds within(Nanoseconds begin, double seconds, Nanoseconds end) {
    return std::min(end, begin + to_ns(seconds));
  }

  TimedList timed(const Ops& ops, bool backward) {
    TimedList list;
    list.ops = ops;
    list.device_s = costs_.time(ops, backward, &list.runs).device_s;
    return list;
  }

  const TimedBody& body(BodyKind kind) {
    std::optional<TimedBody>& kept = bodies_[static_cast<std::size_t>(kind)];
    if (!kept) {
      const Body written = write_body(writer_, kind);
      kept = {timed(written.forward, false), timed(written.recompute, false),
              timed(written.backward, true)};
      const auto at = static_cast<std::size_t>(kind);
      inputs_[at] = part_of(kept->backward, false);
      weights_[at] = part_of(kept->backward, true);
    }
    return *kept;
  }

  std::vector<std::pair<const TimedList*, Phase>> lists_of(BodyKind kind, PassKind pass) {
    const TimedBody& of = body(kind);
    const auto at = static_cast<std::size_t>(kind);
    switch (pass) {
      case PassKind::kForward:
        return {{&of.forward, Phase::kForward}};
      case PassKind::kBackward:
        return {{&of.recompute, Phase::kRecompute}, {&of.backward, Phase::kBackward}};
      case PassKind::kBackwardInput:
        return {{&of.recompute, Phase::kRecompute}, {&inputs_[at], Phase::kBackward}};
      case PassKind::kBackwardWeight:
        break;
    }
    return {{&weights_[at], Phase::kBackward}};
  }

  BodyWriter writer_;
  BodyCosts costs_;
  std::array<std::optional<TimedBody>, kBodyKinds> bodies_;
  std::array<TimedList, kBodyKinds> inputs_, weights_;
};

}  // namespace

void open_chunks(const Model& model, const profiles::Profile& profile, const Plan& plan,
                 const StepRecord& record, ParallelTimeline& timeline) {
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
  ChunkOpener opener(model, profile, plan, record.graphs);
  for (const ActionSpan& span : record.pipeline.spans) {
    StageTimeline& stage = timeline.stages[static_cast<std::size_t>(span.stage)];
    if (span.action.chunk != stage.opened_chunk ||
        span.action.micro_batch != stage.opened_micro_batch) {
      continue;
    }
    opener.open(part_at(span.stage, span.action.chunk), span.action.kind, span.start, span.end,
                stage.operations);
  }
}

}  // namespace shardwright::sim
