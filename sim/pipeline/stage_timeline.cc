// SPDX-License-Identifier: Apache-2.0
#include "sim/pipeline/stage_timeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "sim/core/base/check.h"
#include "sim/cost/to_ns.h"
#include "sim/pipeline/stage_schedules.h"

namespace shardwright::sim {
namespace {

// Of a step with more operations those of the micro-batches in the middle are written.
constexpr std::int64_t kMostOperations = 200'000;

StageWork work_of(PassKind kind) {
  return static_cast<StageWork>(kind);
}
static_assert(static_cast<int>(StageWork::kWeightGradient) ==
              static_cast<int>(PassKind::kBackwardWeight));

/// What a stage does, one after another; what lies between is a bubble.
class Track {
 public:
  Track(std::vector<PassSpan>& spans, std::int32_t rank) : spans_(spans), rank_(rank) {}

  void add(StageWork work, Nanoseconds begin, Nanoseconds end, std::int32_t chunk = -1,
           std::int32_t micro_batch = -1) {
    if (end <= begin) return;
    const bool pair = now_ > 0 && spans_.back().begin_ns == begin && spans_.back().end_ns == end;
    SHARDWRIGHT_CHECK(pair || begin >= now_, "{} begins at {}, before {}", name_of(work), begin,
                      now_);
    if (!pair) wait_until(begin);
    spans_.push_back({work, rank_, 0, chunk, micro_batch, begin, end});
    now_ = end;
  }
  void wait_until(Nanoseconds at) {
    if (at > now_) spans_.push_back({StageWork::kBubble, rank_, 0, -1, -1, now_, at});
    now_ = std::max(now_, at);
  }
  void run(StageWork work, Nanoseconds length, Nanoseconds limit) {
    add(work, now_, std::min(limit, now_ + length));
  }
  Nanoseconds now() const { return now_; }

 private:
  std::vector<PassSpan>& spans_;
  std::int32_t rank_;
  Nanoseconds now_ = 0;
};

/// The same pass without the operations that a schedule moves, closed up, or those alone.
std::vector<PassOperation> part_of(const Schedule& schedule, const std::vector<PassOperation>& pass,
                                   bool delayed) {
  const auto moves = [&](const PassOperation& operation) {
    return is_delayed(schedule, schedule.ops[operation.at.op]);
  };
  const auto moved_before = [&](Nanoseconds at) {
    Nanoseconds moved = 0;
    for (const PassOperation& operation : pass) {
      if (moves(operation))
        moved += std::clamp<Nanoseconds>(at - operation.begin_ns, 0,
                                         operation.end_ns - operation.begin_ns);
    }
    return moved;
  };
  std::vector<PassOperation> part;
  for (const PassOperation& operation : pass) {
    if (moves(operation) != delayed) continue;
    PassOperation& kept = part.emplace_back(operation);
    const Nanoseconds before = moved_before(operation.begin_ns);
    const Nanoseconds length = operation.end_ns - operation.begin_ns;
    kept.begin_ns = delayed ? before : operation.begin_ns - before;
    kept.end_ns = delayed ? before + length : operation.end_ns - moved_before(operation.end_ns);
  }
  return part;
}

std::string content_of(const PipelineRecord& record, const std::vector<ChunkContent>& parts,
                       std::int32_t stage) {
  std::vector<std::string> layers, others;
  for (std::int32_t c = 0; c < record.shape.chunks; ++c) {
    const ChunkContent& part = of_chunk(parts, record.shape, {stage, c});
    const std::int64_t last = part.first_layer + part.layers - 1;
    if (part.embedding) others.emplace_back("embedding");
    if (part.layers == 1) layers.push_back(fmt::format("{}", last));
    if (part.layers > 1) layers.push_back(fmt::format("{} to {}", part.first_layer, last));
    if (part.extra_predictions > 0) others.emplace_back("multi-token prediction");
    if (part.head) others.emplace_back("head");
  }
  if (!layers.empty())
    others.insert(others.begin(), fmt::format("layers {}", fmt::join(layers, ", ")));
  return fmt::format("{}", fmt::join(others, ", "));
}

/// When a pass gives its result to the next chunk, by place of the pass.
struct Place {
  std::int32_t stage, chunk;
  bool forward;
  std::int32_t micro_batch;
  auto operator<=>(const Place&) const = default;
};

Nanoseconds duration_of(const ChunkTimes& times, PassKind kind) {
  if (kind == PassKind::kForward) return times.forward;
  return (makes_input_gradient(kind) ? times.input_gradient : 0) +
         (makes_weight_gradient(kind) ? times.weight_gradient : 0);
}

class Writer {
 public:
  Writer(ChunkTimer& timer, PipelineRecord& record, const std::vector<Schedule>& schedules,
         Timeline& timeline)
      : timer_(timer), record_(record), schedules_(schedules), timeline_(timeline) {
    for (const ActionSpan& span : record.pipeline.spans) {
      if (makes_output(span.action.kind)) made_[place_of(span)] = span.end;
    }
    std::int64_t operations = 0;
    for (const Schedule& schedule : schedules)
      for_each_op(schedule, [&](const OpInstance&, const Op&) { ++operations; });
    const std::int64_t passes = record.shape.passes();
    const auto opened = static_cast<std::int32_t>(
        std::clamp<std::int64_t>(kMostOperations * passes / operations, 1, passes));
    first_opened_ = (record.shape.passes() - opened) / 2;
    last_opened_ = first_opened_ + opened - 1;
  }

  void write_stage(std::int32_t stage, Nanoseconds unvaried_ns) {
    rank_ = stage;
    std::vector<const ActionSpan*> passes;
    for (const ActionSpan& span : record_.pipeline.spans) {
      if (span.stage == stage) passes.push_back(&span);
    }
    write_track(passes, unvaried_ns);
    const Schedule& schedule = schedules_[static_cast<std::size_t>(stage)];
    streams_.clear();
    for_each_op(schedule, [&](const OpInstance&, const Op& op) { streams_.push_back(op.stream); });
    id_ = first_id_ = schedule.first_id;
    for (std::size_t i = 0; i < passes.size(); ++i) {
      const bool second = i > 0 && passes[i - 1]->action.overlaps_next;
      write_pass(*passes[i], second ? passes[i - 1] : nullptr);
    }
    write_update();
  }

  /// Leads the micro-batch in the middle from pass to pass.
  void write_hand_overs() {
    for (const auto& [place, from] : places_) {
      if (place.micro_batch != record_.shape.passes() / 2) continue;
      const ChunkPlace here{place.stage, place.chunk};
      const std::optional<ChunkPlace> next =
          place.forward ? next_chunk(record_.shape, here) : previous_chunk(record_.shape, here);
      if (!next) continue;
      timeline_.hand_overs.emplace_back(
          from, places_.at({next->stage, next->chunk, place.forward, place.micro_batch}));
    }
  }

 private:
  static bool makes_output(PassKind kind) { return kind != PassKind::kBackwardWeight; }
  static Place place_of(const ActionSpan& span) {
    return {span.stage, span.action.chunk, span.action.kind == PassKind::kForward,
            span.action.micro_batch};
  }
  const StageTail& tail() const { return record_.tails[static_cast<std::size_t>(rank_)]; }
  TimedChunk& chunk_of(std::int32_t chunk) {
    return record_.timed[of_chunk(record_.chunks, record_.shape, {rank_, chunk})];
  }
  const ChunkTimes& times_of(std::int32_t chunk) const {
    return record_.times.chunks[static_cast<std::size_t>(rank_ * record_.shape.chunks + chunk)];
  }

  void write_track(const std::vector<const ActionSpan*>& passes, Nanoseconds unvaried_ns) {
    std::vector<PassSpan> spans;
    for (const ActionSpan* span : passes) {
      spans.push_back({work_of(span->action.kind), rank_, 0, span->action.chunk,
                       span->action.micro_batch, span->start, span->end});
    }
    for (const TransferSpan& span : record_.pipeline.transfers) {
      if (span.stage == rank_ || span.stage + 1 == rank_)
        spans.push_back({StageWork::kTransfer, rank_, 0, -1, -1, span.start, span.end});
    }
    std::stable_sort(spans.begin(), spans.end(),
                     [](const PassSpan& a, const PassSpan& b) { return a.begin_ns < b.begin_ns; });
    Track track(timeline_.passes, rank_);
    for (const PassSpan& span : spans) {
      track.add(span.work, span.begin_ns, span.end_ns, span.chunk, span.micro_batch);
      if (is_pass(span.work) && span.work != StageWork::kWeightGradient)
        places_[{rank_, span.chunk, span.work == StageWork::kForward, span.micro_batch}] =
            timeline_.passes.size() - 1;
    }
    // All stages wait for the slowest one's gradients at the norm.
    track.wait_until(record_.pipeline.stages[static_cast<std::size_t>(rank_)].end);
    track.run(StageWork::kDeferred, tail().deferred_ns, record_.reduced_ns);
    track.add(StageWork::kReduction, track.now(), std::min(record_.reduced_ns, tail().end_ns));
    track.wait_until(record_.reduced_ns);
    const Nanoseconds updated = record_.reduced_ns + record_.updated_ns;
    track.run(StageWork::kOptimizer, tail().update_ns, updated);
    track.run(StageWork::kGather, tail().gather_ns, updated);
    track.wait_until(updated);
    track.add(StageWork::kHost, track.now(), unvaried_ns);
    track.add(StageWork::kVariation, track.now(), timeline_.step_ns);
  }

  /// `first` runs as one block with it: what that one does stands before.
  void write_pass(const ActionSpan& span, const ActionSpan* first) {
    const Action& action = span.action;
    Nanoseconds begin = span.start;
    if (first != nullptr) begin += duration_of(times_of(first->action.chunk), first->action.kind);
    const ChunkPlace here{rank_, action.chunk};
    const std::optional<ChunkPlace> from = action.kind == PassKind::kForward
                                               ? previous_chunk(record_.shape, here)
                                               : next_chunk(record_.shape, here);
    if (makes_output(action.kind) && from && from->stage != rank_) {
      Place maker = place_of(span);
      maker.stage = from->stage;
      maker.chunk = from->chunk;
      begin += receive(made_.at(maker), begin, from->stage, chunk_of(action.chunk));
    }
    const std::vector<PassOperation>& pass = operations(action.chunk, action.kind);
    if (action.micro_batch < first_opened_ || action.micro_batch > last_opened_) {
      id_ += std::ssize(pass);
    } else {
      write(pass, begin, span.end);
    }
  }

  /// Returns what of it is inside the pass.
  Nanoseconds receive(Nanoseconds made, Nanoseconds begin, std::int32_t from, TimedChunk& chunk) {
    const PipelineTimes& times = record_.times;
    const std::size_t edge = static_cast<std::size_t>(
        std::abs(from - rank_) == 1 ? std::min(from, rank_) : record_.shape.stages - 1);
    const Nanoseconds arrives = made + (times.blocking ? 0 : times.transfer[edge]);
    if (times.inside > 0)
      add(id_, begin, begin + times.inside);
    else
      add(id_, made, arrives);
    const Schedule& schedule = chunk.schedule;
    const Section& section = schedule.sections[static_cast<std::size_t>(ChunkSection::kReceive)];
    for (std::uint32_t b = 0; b < section.block_count; ++b)
      id_ += schedule.blocks[section.first_block + b].op_count;
    return times.inside;
  }

  void write_update() {
    Nanoseconds begin = record_.reduced_ns;
    const Nanoseconds end = begin + tail().update_ns;
    for (std::int32_t c = 0; c < record_.shape.chunks; ++c) {
      TimedChunk& chunk = chunk_of(c);
      const Nanoseconds then = std::min(end, begin + chunk.passes.update.length_ns);
      write(timer_.pass_operations(chunk, ChunkSection::kUpdate), begin, then);
      begin = then;
    }
  }

  const std::vector<PassOperation>& operations(std::int32_t chunk, PassKind kind) {
    const std::size_t timed = of_chunk(record_.chunks, record_.shape, {rank_, chunk});
    const auto [at, fresh] = operations_.try_emplace({timed, kind});
    if (!fresh) return at->second;
    TimedChunk& of = record_.timed[timed];
    at->second = timer_.pass_operations(
        of, kind == PassKind::kForward ? ChunkSection::kForward : ChunkSection::kBackward);
    if (kind == PassKind::kBackwardInput || kind == PassKind::kBackwardWeight)
      at->second = part_of(of.schedule, at->second, kind == PassKind::kBackwardWeight);
    return at->second;
  }

  /// Puts operations between a begin and an end: a pass alone may last longer than among others.
  void write(const std::vector<PassOperation>& pass, Nanoseconds begin, Nanoseconds end) {
    Nanoseconds last = 1;
    for (std::size_t i = 0; i < pass.size(); ++i) {
      if (stream(id_ + static_cast<OpId>(i)) == 0) last = std::max(last, pass[i].end_ns);
    }
    const double scale =
        std::min(1.0, static_cast<double>(end - begin) / static_cast<double>(last));
    const auto placed = [&](Nanoseconds at) {
      const auto scaled = static_cast<Nanoseconds>(scale * static_cast<double>(at));
      return std::clamp(begin + scaled, begin, std::max(begin, end));
    };
    for (const PassOperation& operation : pass)
      add(id_++, placed(operation.begin_ns), placed(operation.end_ns));
  }

  std::uint8_t stream(OpId id) const {
    return streams_.at(static_cast<std::size_t>(id - first_id_));
  }

  void add(OpId id, Nanoseconds begin, Nanoseconds end) {
    if (end <= begin) return;
    Span& span = timeline_.spans.emplace_back();
    span.id = id;
    span.rank = rank_;
    span.stream = stream(id);
    span.begin_ns = begin;
    span.end_ns = end;
  }

  ChunkTimer& timer_;
  PipelineRecord& record_;
  const std::vector<Schedule>& schedules_;
  Timeline& timeline_;
  std::map<Place, Nanoseconds> made_;
  std::map<Place, std::size_t> places_;  // in Timeline::passes
  std::map<std::pair<std::size_t, PassKind>, std::vector<PassOperation>> operations_;
  std::vector<std::uint8_t> streams_;  // of the stage's operations, by id from its first
  std::int32_t rank_ = 0;
  OpId id_ = 0, first_id_ = 0;
  std::int32_t first_opened_ = 0, last_opened_ = 0;  // micro-batches
};

}  // namespace

void write_stage_timeline(const Model& model, const Plan& plan, const PipelineStep& step,
                          double iteration_s, ChunkTimer& timer, PipelineRecord& record,
                          Timeline& timeline, std::vector<Schedule>& schedules) {
  std::vector<const Schedule*> chunks;
  for (const std::size_t chunk : record.chunks) chunks.push_back(&record.timed[chunk].schedule);
  schedules = stage_schedules(model, record.shape, step.parts, chunks, message_bytes(model, plan));
  timeline = {};
  timeline.source = "predicted";
  timeline.step_ns = to_ns(iteration_s);
  for (const Stream& stream : schedules.front().streams) timeline.streams.emplace_back(stream.name);
  Writer writer(timer, record, schedules, timeline);
  for (std::int32_t s = 0; s < record.shape.stages; ++s) {
    timeline.stages[s] = {s, record.shape.chunks, content_of(record, step.parts, s)};
    writer.write_stage(s, to_ns(step.step_s));
  }
  writer.write_hand_overs();
  std::stable_sort(timeline.spans.begin(), timeline.spans.end(), [](const Span& a, const Span& b) {
    return std::pair(a.rank, a.begin_ns) < std::pair(b.rank, b.begin_ns);
  });
}

}  // namespace shardwright::sim
