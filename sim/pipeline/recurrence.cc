// SPDX-License-Identifier: Apache-2.0
#include "sim/pipeline/recurrence.h"

#include <algorithm>
#include <optional>

#include "sim/core/base/check.h"
#include "sim/schedules/stage_actions.h"

// The walk advances each stage as far as its inputs allow and goes round the stages until all are
// done. An input is known from the moment when its producer was walked, whatever its time, so the
// order of the walk does not matter: every start is the maximum of two known times.
//
// Blocking transfers are rendezvous of neighbours, items of the program like the actions: one with
// the stage before ahead of a forward and behind a backward, one with the stage behind after a
// forward and ahead of a backward. Where a backward follows its stage's forward at once (and the
// other way round) two such rendezvous are one, the batched isend/irecv of 1F1B. The k-th
// rendezvous of two neighbours is the k-th in the program of either.
//
// A long step repeats: times of micro-batch k and k + c differ by the same amount at every chunk
// (the cyclicity theorem of max-plus algebra). The period c is one micro-batch, or a group of them,
// times a small number: with transfers, 1F1B repeats only every up to `stages` micro-batches.

namespace shardwright::sim {

namespace {

constexpr Nanoseconds kUnknown = -1;

class Walk {
 public:
  Walk(const PipelineShape& shape, const PipelineTimes& times, bool keep_spans)
      : shape_(shape), times_(times), keep_spans_(keep_spans), micro_batches_(shape.passes()) {
    const auto places = place_index(shape, {shape.stages, 0});
    SHARDWRIGHT_CHECK(times.chunks.size() == places && std::ssize(times.transfer) == shape.stages,
                      "{} durations for {} chunks, {} transfers for {} stages", times.chunks.size(),
                      places, times.transfer.size(), shape.stages);
    const std::size_t cells = places * static_cast<std::size_t>(micro_batches_);
    SHARDWRIGHT_CHECK(times.by_micro_batch.empty() || times.by_micro_batch.size() == cells,
                      "{} durations for {} passes", times.by_micro_batch.size(), cells);
    outputs_.assign(cells, kUnknown);
    gradients_.assign(cells, kUnknown);
    stages_.resize(static_cast<std::size_t>(shape.stages));
    for (std::int32_t s = 0; s < shape.stages; ++s) {
      Stage& stage = stages_[static_cast<std::size_t>(s)];
      stage.actions = stage_actions(shape, s);
      write_items(s, stage);
      stage.times.first_forward.assign(static_cast<std::size_t>(shape.chunks), kUnknown);
      stage.times.last_backward.assign(static_cast<std::size_t>(shape.chunks), 0);
      remaining_ += stage.items.size();
    }
  }

  PipelineResult run() {
    while (remaining_ > 0) {
      const std::size_t before = remaining_;
      for (std::int32_t s = 0; s < shape_.stages; ++s) {
        while (step(s)) {
        }
      }
      SHARDWRIGHT_CHECK(remaining_ < before, "the {} pipeline of {} stages stands still",
                        shape_.info().name, shape_.stages);
    }
    PipelineResult result;
    result.simulated_micro_batches = shape_.micro_batches;
    for (Stage& stage : stages_) {
      stage.times.end = stage.free;
      result.makespan = std::max(result.makespan, stage.free);
      result.stages.push_back(std::move(stage.times));
    }
    result.spans = std::move(spans_);
    result.transfers = std::move(transfers_);
    return result;
  }

  /// The time by which the gradients of every chunk move from micro-batch k to k + period in the
  /// steady part of the step; nothing when they do not all move by the same.
  std::optional<Nanoseconds> shift_of(std::int32_t period, std::int32_t drain) const {
    const std::int32_t last = micro_batches_ - drain;
    const std::int32_t first = last - 2 * period;
    if (first < period) return std::nullopt;
    const Nanoseconds shift =
        gradients_[cell({0, 0}, last)] - gradients_[cell({0, 0}, last - period)];
    for (std::int32_t s = 0; s < shape_.stages; ++s) {
      for (std::int32_t c = 0; c < shape_.chunks; ++c) {
        for (std::int32_t k = first; k <= last; ++k) {
          const Nanoseconds moved =
              gradients_[cell({s, c}, k)] - gradients_[cell({s, c}, k - period)];
          if (moved != shift) return std::nullopt;
        }
      }
    }
    return shift;
  }

 private:
  enum class Item : std::uint8_t { kAction, kMeetBefore, kMeetBehind };
  struct Stage {
    Actions actions;
    std::vector<Item> items;
    std::size_t next_item = 0;
    std::size_t next = 0;  // action
    Nanoseconds free = 0;
    bool started = false;
    StageTimes times;
  };

  void write_items(std::int32_t s, Stage& stage) const {
    const bool before = times_.blocking && s > 0;
    const bool behind = times_.blocking && s + 1 < shape_.stages;
    const bool batches = shape_.info().blocking == BlockingTransfers::kBatched;
    const std::int32_t lead = shape_.stages - s - 1;  // of forward over backward, once steady
    for (std::size_t i = 0; i < stage.actions.size(); ++i) {
      const Action& action = stage.actions[i];
      const bool forward = action.kind == PassKind::kForward;
      bool batched = false;
      if (batches && i > 0 && stage.actions[i - 1].kind != action.kind) {
        const std::int32_t apart = stage.actions[i - 1].micro_batch - action.micro_batch;
        batched = apart == (forward ? -lead - 1 : lead);
      }
      if (!batched && (forward ? before : behind)) {
        stage.items.push_back(forward ? Item::kMeetBefore : Item::kMeetBehind);
      }
      stage.items.push_back(Item::kAction);
      if (forward ? behind : before) {
        stage.items.push_back(forward ? Item::kMeetBehind : Item::kMeetBefore);
      }
    }
  }

  /// Both neighbours stand still until the transfer is over.
  bool meet(std::int32_t s, std::int32_t other) {
    Stage& here = stages_[static_cast<std::size_t>(s)];
    Stage& there = stages_[static_cast<std::size_t>(other)];
    const Item mirrored = other > s ? Item::kMeetBefore : Item::kMeetBehind;
    if (there.next_item == there.items.size() || there.items[there.next_item] != mirrored) {
      return false;
    }
    const Nanoseconds start = std::max(here.free, there.free);
    const Nanoseconds end = start + transfer_between(s, other) + times_.restart;
    if (keep_spans_) transfers_.push_back({std::min(s, other), start, end});
    for (Stage* stage : {&here, &there}) {
      stage->times.transfers += end - start;
      stage->free = end;
      ++stage->next_item;
      --remaining_;
    }
    return true;
  }

  std::size_t cell(ChunkPlace place, std::int32_t micro) const {
    return place_index(shape_, place) * static_cast<std::size_t>(micro_batches_) +
           static_cast<std::size_t>(micro);
  }
  const ChunkTimes& times_of(ChunkPlace place, std::int32_t micro) const {
    if (!times_.by_micro_batch.empty()) return times_.by_micro_batch[cell(place, micro)];
    return times_.chunks[place_index(shape_, place)];
  }
  Nanoseconds transfer_between(std::int32_t a, std::int32_t b) const {
    if (a == b) return 0;
    const bool wraps = std::abs(a - b) != 1;
    const std::int32_t edge = wraps ? shape_.stages - 1 : std::min(a, b);
    return times_.transfer[static_cast<std::size_t>(edge)];
  }

  /// When the input of an action is there; nothing when that is not known yet.
  std::optional<Nanoseconds> ready(std::int32_t stage, const Action& action) const {
    const ChunkPlace here{stage, action.chunk};
    std::optional<ChunkPlace> from;
    const std::vector<Nanoseconds>* times = nullptr;
    switch (action.kind) {
      case PassKind::kForward:
        from = previous_chunk(shape_, here);
        times = &outputs_;
        break;
      case PassKind::kBackward:
      case PassKind::kBackwardInput: {
        // The chunk with the head begins with its own output.
        from = next_chunk(shape_, here);
        times = from ? &gradients_ : &outputs_;
        if (!from) from = here;
        break;
      }
      case PassKind::kBackwardWeight:
        return Nanoseconds{0};
    }
    if (!from) return Nanoseconds{0};
    const Nanoseconds at = (*times)[cell(*from, action.micro_batch)];
    if (at == kUnknown) return std::nullopt;
    const Nanoseconds late = times_.blocking ? 0 : transfer_between(from->stage, stage);
    return at + late;
  }

  Nanoseconds duration(const ChunkTimes& t, PassKind kind) const {
    switch (kind) {
      case PassKind::kForward:
        return t.forward;
      case PassKind::kBackward:
        return t.input_gradient + t.weight_gradient;
      case PassKind::kBackwardInput:
        return t.input_gradient;
      case PassKind::kBackwardWeight:
        return t.weight_gradient;
    }
    return 0;
  }

  void finish(std::int32_t s, const Action& action, Nanoseconds start, Nanoseconds end) {
    Stage& stage = stages_[static_cast<std::size_t>(s)];
    const ChunkPlace here{s, action.chunk};
    const ChunkTimes& t = times_of(here, action.micro_batch);
    if (action.kind == PassKind::kForward) {
      outputs_[cell(here, action.micro_batch)] = std::max(start, end - t.forward_tail);
      Nanoseconds& first = stage.times.first_forward[static_cast<std::size_t>(action.chunk)];
      if (first == kUnknown) first = start;
    } else if (action.kind != PassKind::kBackwardWeight) {
      gradients_[cell(here, action.micro_batch)] = std::max(start, end - t.backward_tail);
    }
    if (action.kind != PassKind::kForward) {
      Nanoseconds& last = stage.times.last_backward[static_cast<std::size_t>(action.chunk)];
      last = std::max(last, end);
    }
    if (!stage.started) {
      stage.started = true;
      stage.times.first_start = start;
    }
    if (keep_spans_) spans_.push_back({s, action, start, end});
    ++stage.next;
    ++stage.next_item;
    --remaining_;
  }

  /// Runs the next action (or pair) of a stage if its inputs are known.
  bool step(std::int32_t s) {
    Stage& stage = stages_[static_cast<std::size_t>(s)];
    if (stage.next_item == stage.items.size()) return false;
    const Item item = stage.items[stage.next_item];
    if (item != Item::kAction) return meet(s, item == Item::kMeetBefore ? s - 1 : s + 1);
    const Action& action = stage.actions[stage.next];
    const std::optional<Nanoseconds> input = ready(s, action);
    if (!input) return false;
    if (action.overlaps_next) return step_pair(s, *input);
    const Nanoseconds start = std::max(stage.free, *input);
    const Nanoseconds took = duration(times_of({s, action.chunk}, action.micro_batch), action.kind);
    stage.free = start + took;
    stage.times.busy += took;
    finish(s, action, start, stage.free);
    return true;
  }

  bool step_pair(std::int32_t s, Nanoseconds first_input) {
    Stage& stage = stages_[static_cast<std::size_t>(s)];
    const Action first = stage.actions[stage.next];
    const Action second = stage.actions[stage.next + 1];
    const std::optional<Nanoseconds> second_input = ready(s, second);
    if (!second_input) return false;
    const ChunkTimes& t = times_of({s, first.chunk}, first.micro_batch);
    const Nanoseconds took =
        t.paired > 0 ? t.paired
                     : duration(t, first.kind) +
                           duration(times_of({s, second.chunk}, second.micro_batch), second.kind);
    const Nanoseconds start = std::max({stage.free, first_input, *second_input});
    stage.free = start + took;
    stage.times.busy += took;
    finish(s, first, start, stage.free);
    finish(s, second, start, stage.free);
    return true;
  }

  PipelineShape shape_;
  const PipelineTimes& times_;
  bool keep_spans_;
  std::int32_t micro_batches_;
  std::vector<Stage> stages_;
  std::vector<Nanoseconds> outputs_, gradients_;  // by (stage, chunk, micro-batch)
  std::size_t remaining_ = 0;
  std::vector<ActionSpan> spans_;
  std::vector<TransferSpan> transfers_;
};

/// Micro-batches after which a schedule's program repeats.
std::int32_t program_period(const PipelineShape& shape) {
  return shape.info().groups_micro_batches ? shape.group_size() : 1;
}

/// A step of fewer micro-batches that shows the repetition: the same remainder, so that its last
/// group is as full, and room for the start, two periods and the drain.
std::int32_t shortened(const PipelineShape& shape, std::int32_t longest_period) {
  const std::int32_t enough = 6 * std::max(shape.stages, longest_period) + 2 * longest_period;
  const std::int32_t rest = (shape.micro_batches - enough) % longest_period;
  return enough + (rest < 0 ? rest + longest_period : rest);
}

/// `result` of a short step, with `periods` more of them.
void lengthen(PipelineResult& result, const PipelineShape& shape, const PipelineTimes& times,
              std::int32_t micro_batches, Nanoseconds added) {
  result.makespan += added;
  for (std::int32_t s = 0; s < shape.stages; ++s) {
    StageTimes& stage = result.stages[static_cast<std::size_t>(s)];
    stage.end += added;
    for (Nanoseconds& last : stage.last_backward) last += added;
    Nanoseconds busy = 0;
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      const ChunkTimes& t = times.chunks[place_index(shape, {s, c})];
      busy += t.forward + t.input_gradient + t.weight_gradient;
    }
    stage.busy += micro_batches * busy;
    if (!times.blocking) continue;
    // 1F1B meets either neighbour once a micro-batch, both ways in one transfer.
    for (const std::int32_t edge : {s - 1, s}) {
      if (edge < 0 || edge + 1 >= shape.stages) continue;
      stage.transfers +=
          micro_batches * (times.transfer[static_cast<std::size_t>(edge)] + times.restart);
    }
  }
}

}  // namespace

double PipelineResult::bubble() const {
  Nanoseconds busy = 0;
  for (const StageTimes& stage : stages) busy += stage.busy;
  const double whole = static_cast<double>(makespan) * static_cast<double>(stages.size());
  return whole > 0 ? 1 - static_cast<double>(busy) / whole : 0;
}

PipelineResult run_pipeline(const PipelineShape& shape, const PipelineTimes& times,
                            StepLength length, bool keep_spans) {
  const std::int32_t unit = program_period(shape);
  const std::int32_t longest = unit * shape.stages;
  PipelineShape fewer = shape;
  fewer.micro_batches = shortened(shape, longest);
  if (length == StepLength::kShortened && !keep_spans && times.by_micro_batch.empty() &&
      shape.info().has_steady_state && 2 * fewer.micro_batches < shape.micro_batches) {
    Walk walk(fewer, times, false);
    PipelineResult result = walk.run();
    const std::int32_t more = shape.micro_batches - fewer.micro_batches;
    for (std::int32_t period = unit; period <= longest; period += unit) {
      if (more % period != 0) continue;
      const std::optional<Nanoseconds> shift =
          walk.shift_of(period, 3 * std::max(unit, shape.stages));
      if (!shift) continue;
      lengthen(result, fewer, times, more, more / period * *shift);
      return result;
    }
  }
  return Walk(shape, times, keep_spans).run();
}

}  // namespace shardwright::sim
