// SPDX-License-Identifier: Apache-2.0
#include "sim/pipeline/pipeline_step.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "sim/core/base/check.h"
#include "sim/core/base/numbers.h"
#include "sim/core/strategy.h"
#include "sim/cost/op_cost.h"
#include "sim/program/program_writer.h"

namespace shardwright::sim {

namespace {

constexpr double kRounding = 1e-9;  // of a step, what its parts may miss by being added up

std::size_t at(CommGroup group) {
  return static_cast<std::size_t>(group);
}

Nanoseconds scaled(Nanoseconds time, double factor) {
  return static_cast<Nanoseconds>(static_cast<double>(time) * factor);
}

/// Moves `pass` towards `other` by that share of their difference.
void blend(PassTime& pass, const PassTime& other, double share) {
  const PassTime before = pass;
  add(pass, other, share);
  add(pass, before, -share);
}

/// The first forward passes and the last backward ones of a stage have no pass of the other kind
/// beside them: Megatron's combined schedule of forward and backward (core/pipeline_parallel,
/// combined_1f1b) warms up with (p - 1) + (v - 1) p + 1 of m v passes in the mean of the stages.
double lonely_share(const PipelineShape& shape) {
  const double stages = shape.stages, chunks = shape.chunks;
  const double warm_up = (stages - 1) + (chunks - 1) * stages + 1;
  return std::min(1.0, warm_up / (shape.micro_batches * chunks));
}

/// Of a stage and a micro-batch: activations to the chunk behind, gradients to the one before.
int messages_sent(const PipelineShape& shape, std::int32_t stage) {
  const auto sends = [&](const std::optional<ChunkPlace>& to) {
    return to && to->stage != stage ? 1 : 0;
  };
  int messages = 0;
  for (std::int32_t c = 0; c < shape.chunks; ++c) {
    const ChunkPlace here{stage, c};
    messages += sends(next_chunk(shape, here)) + sends(previous_chunk(shape, here));
  }
  return messages;
}

bool overlaps_reductions(const Plan& plan, const Stack& stack) {
  const bool sharded = info_of(plan.strategy).shards == Sharded::kParameters;
  return plan.parallel.overlap_grad_reduce.value_or(sharded || stack.parallel.overlap_grad_reduce);
}

}  // namespace

/// The plan's pipeline with its chunks timed.
struct PipelineSimulator::Stages {
  const PipelineShape& shape;
  std::deque<TimedChunk>& timed;
  const std::vector<std::size_t>& chunk_of;
  const std::vector<Nanoseconds>& deferred_ns;

  std::size_t index(std::int32_t stage, std::int32_t chunk) const {
    return of_chunk(chunk_of, shape, {stage, chunk});
  }
  TimedChunk& chunk(std::int32_t stage, std::int32_t c) const { return timed[index(stage, c)]; }
  const ChunkPasses& passes(std::int32_t stage, std::int32_t c) const {
    return chunk(stage, c).passes;
  }
};

void PipelineSimulator::time_chunks(const Plan& plan, const std::vector<ChunkContent>& parts) {
  chunk_of_.clear();
  distinct_ = 0;
  std::vector<std::size_t> first_of;  // part of each distinct chunk
  // Where a forward pass runs beside backward (DualPipe), it hides the collectives of both halves.
  const PipelineInfo& schedule = info_of(plan.parallel.schedule());
  const bool apart = schedule.splits_backward && schedule.order != ChunkOrder::kBothWays;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    // Few chunks differ.
    const auto known = std::find_if(first_of.begin(), first_of.end(), [&](std::size_t other) {
      return alike(parts[part], parts[other]);
    });
    chunk_of_.push_back(static_cast<std::size_t>(known - first_of.begin()));
    if (known != first_of.end()) continue;
    first_of.push_back(part);
    if (timed_.size() <= distinct_) timed_.emplace_back();
    TimedChunk& chunk = timed_[distinct_++];
    lower_chunk(model_, plan, profile_.stack, profile_.cluster, programs_.at(plan), parts[part],
                chunk.schedule);
    timer_.time(chunk, apart);
  }
}

void PipelineSimulator::show_lonely_passes(const Plan& plan, const PipelineShape& shape,
                                           const std::vector<ChunkContent>& parts) {
  if (!plan.parallel.ep_overlap.value_or(false)) return;
  const double share = lonely_share(shape);
  std::vector<ChunkPasses> together;
  for (std::size_t i = 0; i < distinct_; ++i) together.push_back(timed_[i].passes);
  Plan waits = plan;
  waits.parallel.ep_overlap = false;
  time_chunks(waits, parts);
  std::vector<ChunkPasses> alone;
  for (std::size_t i = 0; i < distinct_; ++i) alone.push_back(timed_[i].passes);
  time_chunks(plan, parts);
  for (std::size_t i = 0; i < distinct_; ++i) {
    blend(timed_[i].passes.forward, alone[i].forward, share);
    blend(timed_[i].passes.backward, alone[i].backward, share);
  }
}

/// Weight gradients of the head that wait for the flush, of all micro-batches together (Megatron's
/// defer_embedding_wgrad_compute).
void PipelineSimulator::defer_head(const Plan& plan, const std::vector<ChunkContent>& parts) {
  deferred_ns_.assign(distinct_, 0);
  const ProgramWriter writer(model_, plan, profile_.stack, profile_.cluster.gpu);
  if (writer.tensor_overlap() != TensorOverlap::kUserbuffers) return;
  const std::int64_t most = profile_.stack.parallel.userbuffers.deferred_head_gradients;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (!parts[part].head) continue;
    ChunkPasses& passes = timed_[chunk_of_[part]].passes;
    const Nanoseconds all = std::min(most, plan.grad_accum) * passes.head_delayed_ns;
    const Nanoseconds each = all / plan.grad_accum;
    deferred_ns_[chunk_of_[part]] = all;
    passes.backward.length_ns -= each;
    passes.backward.time.compute_ns -= each;
    passes.delayed_ns -= each;
  }
}

PipelineTimes PipelineSimulator::pipeline_times(const Stages& stages, double message_bytes) {
  const ParallelSoftware& stack = profile_.stack.parallel;
  const PipelineShape& shape = stages.shape;
  PipelineTimes times;
  for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      const ChunkPasses& passes = stages.passes(stage, c);
      ChunkTimes& chunk = times.chunks.emplace_back();
      chunk.forward = passes.forward.length_ns;
      chunk.weight_gradient = passes.delayed_ns;
      chunk.input_gradient = passes.backward.length_ns - passes.delayed_ns;
    }
  }
  Nanoseconds transfer = 0;
  for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
    transfer =
        to_ns(timer_.operations().transfer_s(stage % std::max(1, shape.stages - 1), message_bytes));
    times.transfer.push_back(transfer);
  }
  times.blocking = stack.blocking_transfers && shape.info().blocking != BlockingTransfers::kNever;
  times.restart = to_ns(stack.transfer_sync_s);
  if (shape.interleaves() && !stack.overlapped_interleaving) {
    // Every pass waits for its own exchange.
    for (ChunkTimes& chunk : times.chunks) {
      chunk.forward += transfer;
      chunk.input_gradient += transfer;
    }
    std::fill(times.transfer.begin(), times.transfer.end(), 0);
    times.inside = transfer;
  }
  return times;
}

/// Chunks reduce in the order in which backward completes them, one after another; passes that
/// follow run beside.
void PipelineSimulator::reduce(const Stages& stages, std::int32_t stage, const StageTimes& times,
                               StageTail& tail, PipelineRecord* record) const {
  struct Reduced {
    Nanoseconds complete;
    const ChunkPasses* passes;
  };
  std::vector<Reduced> order;
  for (std::int32_t c = 0; c < stages.shape.chunks; ++c) {
    const bool defers = stages.deferred_ns[stages.index(stage, c)] > 0;
    order.push_back(
        {defers ? times.end + tail.deferred_ns : times.last_backward[static_cast<std::size_t>(c)],
         &stages.passes(stage, c)});
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const Reduced& a, const Reduced& b) { return a.complete < b.complete; });
  const Nanoseconds end = times.end + tail.deferred_ns;
  Nanoseconds done = 0, late = 0;  // late: by what passes beside reductions take longer
  for (const Reduced& chunk : order) {
    const Nanoseconds complete = chunk.complete + late;
    const Nanoseconds before = done;
    done = complete + chunk.passes->reduction.length_ns;
    if (before > 0) done = std::max(done, before + chunk.passes->reducing_ns);
    if (record != nullptr && done > std::max(before, done - chunk.passes->reducing_ns)) {
      record->reductions.push_back(
          {stage, std::max(before, done - chunk.passes->reducing_ns), done});
    }
    if (&chunk != &order.back()) {
      const Nanoseconds beside = std::max<Nanoseconds>(0, std::min(done, end + late) - complete);
      late += scaled(beside, chunk.passes->slowed_share);
    }
  }
  tail.end_ns = std::max(end + late, done);
  tail.reduction_ns = tail.end_ns - end;
}

/// What the first forward passes wait for parameters, beyond what the fill of the pipeline hides.
PassTime PipelineSimulator::gather(const Stages& stages, std::int32_t stage,
                                   const StageTimes& times) {
  PassTime most;
  Nanoseconds gathered = 0;  // by the chunks before
  for (std::int32_t c = 0; c < stages.shape.chunks; ++c) {
    TimedChunk& chunk = stages.chunk(stage, c);
    const Nanoseconds begins = times.first_forward[static_cast<std::size_t>(c)];
    const Nanoseconds spare = std::max<Nanoseconds>(0, begins - gathered);
    PassTime late = chunk.passes.first_forward;
    if (spare > 0 && late.length_ns > 0) late = timer_.first_forward(chunk, spare);
    if (late.length_ns > most.length_ns) most = late;
    gathered += chunk.passes.gathering_ns;
  }
  return most;
}

StageTail PipelineSimulator::stage_tail(const Plan& plan, const Stages& stages, std::int32_t stage,
                                        const StageTimes& times, PipelineRecord* record) {
  const PipelineShape& shape = stages.shape;
  StageTail tail;
  for (std::int32_t c = 0; c < shape.chunks; ++c) {
    tail.deferred_ns += stages.deferred_ns[stages.index(stage, c)];
    add(tail.update, stages.passes(stage, c).update);
  }
  tail.update_ns = tail.update.length_ns;
  if (overlaps_reductions(plan, profile_.stack)) {
    reduce(stages, stage, times, tail, record);
  } else {
    for (std::int32_t c = 0; c < shape.chunks; ++c)
      tail.reduction_ns += stages.passes(stage, c).reduction.length_ns;
    const Nanoseconds begin = times.end + tail.deferred_ns;
    tail.end_ns = begin + tail.reduction_ns;
    if (record != nullptr && tail.reduction_ns > 0)
      record->reductions.push_back({stage, begin, tail.end_ns});
  }
  // The embedding's gradient on the first stage and the head's on the last are one.
  Bytes tied_bytes = 0;
  for (std::int32_t c = 0; c < shape.chunks; ++c) {
    tied_bytes = std::max(tied_bytes, stages.passes(stage, c).tied_bytes);
    tail.tied_ns += stages.passes(stage, c).tied_add_ns;
  }
  if (tied_bytes > 0)
    tail.tied_ns += to_ns(timer_.operations().transfer_s(0, static_cast<double>(tied_bytes)));
  tail.reduction_ns += tail.tied_ns;
  tail.end_ns += tail.tied_ns;
  tail.gather_ns = gather(stages, stage, times).length_ns;
  return tail;
}

void PipelineSimulator::finish(const Plan& plan, const Stages& stages,
                               const PipelineResult& pipeline, const JointStages* joint,
                               SimulatedStep& step, PipelineRecord* record) {
  const PipelineShape& shape = stages.shape;
  step.bubble = pipeline.bubble();
  step.steady_state_after = pipeline.simulated_micro_batches;
  std::vector<StageTail> tails;
  Nanoseconds reduced_ns = 0, updated_ns = 0;
  for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
    const StageTimes& times = pipeline.stages[static_cast<std::size_t>(stage)];
    StageTail& tail = tails.emplace_back(stage_tail(plan, stages, stage, times, record));
    if (joint != nullptr) tail.update_ns += joint->update_longer(stage);
    reduced_ns = std::max(reduced_ns, tail.end_ns);
    updated_ns = std::max(updated_ns, tail.update_ns + tail.gather_ns);
  }
  const double host_step_s = profile_.stack.host.step_s;
  step.step_s = seconds_of(reduced_ns + updated_ns) + host_step_s;
  double most = -1;
  for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
    const StageTail& tail = tails[static_cast<std::size_t>(stage)];
    PassTime forward, backward;
    CommunicationByGroup sent{};
    Nanoseconds issued = 0;
    KernelTimes kernels;
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      const ChunkPasses& passes = stages.passes(stage, c);
      add(forward, passes.forward, shape.passes());
      add(backward, passes.backward, shape.passes());
      step.flops += passes.flops / shape.stages;
      issued += passes.issued_ns * shape.passes();
      kernels.add(passes.kernels, shape.passes());
      issued += passes.update_issued_ns;
      kernels.add(passes.update_kernels, 1);
      for (std::size_t g = 0; g < sent.size(); ++g) sent[g].add(passes.sent[g]);
    }
    PassTime all = forward;
    add(all, backward);
    std::array<double, kCommGroups> exposed_s{};
    for (std::size_t g = 0; g < exposed_s.size(); ++g)
      exposed_s[at(told_as(static_cast<CommGroup>(g)))] += seconds_of(all.exposed_ns[g]);
    exposed_s[at(CommGroup::kPipeline)] +=
        seconds_of(pipeline.stages[static_cast<std::size_t>(stage)].transfers);
    exposed_s[at(CommGroup::kData)] +=
        seconds_of(tail.reduction_ns + tail.gather_ns + tail.update.time.exposed_ns);
    StageTime& parts = step.stages.emplace_back();
    parts.compute_s = seconds_of(all.time.compute_ns + tail.deferred_ns);
    parts.exposed_s = std::accumulate(exposed_s.begin(), exposed_s.end(), 0.0);
    parts.optimizer_s = seconds_of(tail.update_ns - tail.update.time.exposed_ns);
    parts.host_s =
        seconds_of(all.length_ns - all.time.compute_ns - all.time.exposed_ns) + host_step_s;
    const double rest =
        step.step_s - parts.compute_s - parts.exposed_s - parts.host_s - parts.optimizer_s;
    parts.bubble_s = rest < kRounding * step.step_s ? 0 : rest;
    const double busy = seconds_of(forward.length_ns + backward.length_ns + tail.deferred_ns);
    if (busy <= most) continue;
    most = busy;
    step.busiest = stage;
    step.forward_s = seconds_of(forward.length_ns);
    step.backward_s = seconds_of(backward.length_ns + tail.deferred_ns);
    step.exposed_s = exposed_s;
    step.sent = sent;
    step.issued_s = seconds_of(issued);
    step.kernels = kernels;
  }
  if (record == nullptr) return;
  record->tails = std::move(tails);
  record->reduced_ns = reduced_ns;
  record->updated_ns = updated_ns;
}

SimulatedStep PipelineSimulator::run(const Plan& asked, PipelineRecord* record,
                                     JointStages* joint) {
  const PipelineShape shape = pipeline_shape(asked);
  check_shape(shape);
  const Plan plan = plan_of_chunk(asked, shape);
  SimulatedStep step;
  step.parts = partition_layers(model_, asked, profile_.stack);
  time_chunks(plan, step.parts);
  show_lonely_passes(plan, shape, step.parts);
  defer_head(plan, step.parts);
  const Stages stages{shape, timed_, chunk_of_, deferred_ns_};
  const RankShape rank = rank_shape(model_, plan);
  const double message =
      2 * static_cast<double>(rank.sharded_tokens) * static_cast<double>(rank.hidden);
  PipelineTimes times = pipeline_times(stages, message);
  const bool recorded = record != nullptr;
  PipelineResult pipeline;
  if (joint != nullptr) {
    std::vector<TimedChunk*> distinct;
    for (std::size_t i = 0; i < distinct_; ++i) distinct.push_back(&timed_[i]);
    pipeline = joint->run(shape, times, chunk_of_, distinct, timer_);
  } else {
    pipeline = run_pipeline(shape, times, recorded ? StepLength::kWhole : StepLength::kShortened,
                            recorded);
  }
  finish(plan, stages, pipeline, joint, step, record);
  step.sent[at(CommGroup::kPipeline)].point_to_point +=
      messages_sent(shape, static_cast<std::int32_t>(step.busiest)) * message * shape.passes();
  if (recorded) {
    record->shape = shape;
    record->times = std::move(times);
    record->pipeline = std::move(pipeline);
    record->chunks = chunk_of_;
    record->timed = timed_;
  }
  return step;
}

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
  bool operator<(const Place& other) const {
    return std::tie(stage, chunk, forward, micro_batch) <
           std::tie(other.stage, other.chunk, other.forward, other.micro_batch);
  }
};

Nanoseconds duration_of(const ChunkTimes& times, PassKind kind) {
  if (kind == PassKind::kForward) return times.forward;
  return (makes_input_gradient(kind) ? times.input_gradient : 0) +
         (makes_weight_gradient(kind) ? times.weight_gradient : 0);
}

/// The operations of one pass of a stage's schedule, by what they are.
class PassPlaces {
 public:
  PassPlaces(const Schedule& stage, const Section& section) {
    OpId place = 0;
    for (const Block& block : stage.blocks_of(section)) {
      for (std::int32_t rep = 0; rep < block.repeats; ++rep) {
        for (const Op& op : stage.ops_of(block)) {
          places_[key_of(op, block.first_unit + rep * block.unit_step)].push_back(place++);
          streams_.push_back(op.stream);
          reductions_.push_back(op.deferrable && op.stream != 0);
        }
      }
    }
  }

  OpId size() const { return std::ssize(streams_); }
  std::uint8_t stream(OpId place) const { return streams_[static_cast<std::size_t>(place)]; }
  /// What becomes of weight gradients, beside what computes.
  bool is_reduction(OpId place) const { return reductions_[static_cast<std::size_t>(place)]; }

  /// Where a chunk's operations are; -1 for what this pass does not do.
  std::vector<OpId> of(const Schedule& chunk, const std::vector<PassOperation>& operations,
                       const ChunkContent& content, std::int64_t layers) const {
    std::map<Key, std::size_t> used;
    std::vector<OpId> result;
    for (const PassOperation& operation : operations) {
      const std::int32_t unit = unit_in_model(chunk, content, layers, operation.at.unit);
      const Key key = key_of(chunk.ops[operation.at.op], unit);
      const auto known = places_.find(key);
      std::size_t& next = used[key];
      const bool has = known != places_.end() && next < known->second.size();
      result.push_back(has ? known->second[next++] : -1);
    }
    return result;
  }

 private:
  using Key = std::tuple<std::int32_t, OpKind, OpKind, Phase, int, int, CommGroup, bool>;
  static Key key_of(const Op& op, std::int32_t unit) {
    return {unit, op.kind, op.of, op.phase, op.part, op.target, op.work.group, op.stream == 0};
  }

  std::map<Key, std::vector<OpId>> places_;
  std::vector<std::uint8_t> streams_;
  std::vector<bool> reductions_;
};

class Writer {
 public:
  Writer(ChunkTimer& timer, PipelineRecord& record, const std::vector<ChunkContent>& parts,
         const std::vector<Schedule>& schedules, Timeline& timeline)
      : timer_(timer), record_(record), parts_(parts), schedules_(schedules), timeline_(timeline) {
    for (const ActionSpan& span : record.pipeline.spans) {
      if (makes_output(span.action.kind)) made_[place_of(span)] = span.end;
    }
    std::int64_t operations = 0;
    for (const Schedule& schedule : schedules)
      for_each_op(schedule, [&](const OpInstance&, const Op&) { ++operations; });
    const std::int64_t passes = record.shape.passes();
    const auto opened = static_cast<std::int32_t>(std::clamp<std::int64_t>(
        kMostOperations * passes / std::max<std::int64_t>(1, operations), 1, passes));
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
    schedule_ = &schedules_[static_cast<std::size_t>(stage)];
    places_.clear();
    free_.assign(schedule_->streams.size(), 0);
    id_ = schedule_->first_id;
    std::size_t next = 0;
    std::size_t behind = schedule_->sections.size();
    for (const Section& section : schedule_->sections) {
      const bool updates = behind-- <= static_cast<std::size_t>(record_.shape.chunks);
      if (next == passes.size() && !updates) write_tied_sum(section);
      if (section.pass) {
        const bool second = next > 0 && passes[next - 1]->action.overlaps_next;
        write_pass(section, *passes[next], second ? passes[next - 1] : nullptr);
        ++next;
      }
      id_ += placed(section).places.size();
    }
    write_update();
  }

  /// Leads the micro-batch in the middle from pass to pass.
  void write_hand_overs() {
    for (const auto& [place, from] : in_passes_) {
      if (place.micro_batch != record_.shape.passes() / 2) continue;
      const ChunkPlace here{place.stage, place.chunk};
      const std::optional<ChunkPlace> next =
          place.forward ? next_chunk(record_.shape, here) : previous_chunk(record_.shape, here);
      if (!next) continue;
      timeline_.hand_overs.emplace_back(
          from, in_passes_.at({next->stage, next->chunk, place.forward, place.micro_batch}));
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
    return record_.times.chunks[place_index(record_.shape, {rank_, chunk})];
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
        in_passes_[{rank_, span.chunk, span.work == StageWork::kForward, span.micro_batch}] =
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
  void write_pass(const Section& section, const ActionSpan& span, const ActionSpan* first) {
    const Action& action = span.action;
    Nanoseconds begin = span.start;
    if (first != nullptr) begin += duration_of(times_of(first->action.chunk), first->action.kind);
    const Op& opens = schedule_->ops[schedule_->blocks[section.first_block].first_op];
    if (opens.kind == OpKind::kReceive) {
      const ChunkPlace here{rank_, action.chunk};
      Place maker = place_of(span);
      const ChunkPlace from =
          maker.forward ? *previous_chunk(record_.shape, here) : *next_chunk(record_.shape, here);
      maker.stage = from.stage;
      maker.chunk = from.chunk;
      receive(opens, made_.at(maker), begin);
      begin += record_.times.inside;
    }
    if (action.micro_batch < first_opened_ || action.micro_batch > last_opened_) return;
    Placed& pass = placed(section);
    const std::vector<PassOperation>& done = operations(action.chunk, action.kind);
    if (pass.of_operations.empty())
      pass.of_operations = pass.places.of(chunk_of(action.chunk).schedule, done,
                                          content(action.chunk), schedule_->layers);
    write(pass, done, begin, span.end);
  }

  /// The operation that begins a pass; what of it is inside the pass, or all of it.
  void receive(const Op& op, Nanoseconds made, Nanoseconds begin) {
    const PipelineTimes& times = record_.times;
    const std::size_t edge = static_cast<std::size_t>(std::abs(op.peer - rank_) == 1
                                                          ? std::min<std::int32_t>(op.peer, rank_)
                                                          : record_.shape.stages - 1);
    if (times.inside > 0)
      add(id_, op.stream, begin, begin + times.inside);
    else
      add(id_, op.stream, made, made + (times.blocking ? 0 : times.transfer[edge]));
  }

  /// Behind the reductions of both stages.
  void write_tied_sum(const Section& section) {
    Nanoseconds add_ns = 0;
    for (std::int32_t c = 0; c < record_.shape.chunks; ++c)
      add_ns += chunk_of(c).passes.tied_add_ns;
    Nanoseconds begin = 0;  // when the other stage has its part, too
    for (const StageTail& of : record_.tails) {
      if (of.tied_ns > 0) begin = std::max(begin, of.end_ns - of.tied_ns);
    }
    const Nanoseconds end = begin + tail().tied_ns, arrived = end - add_ns;
    OpId id = id_;
    for (const Block& block : schedule_->blocks_of(section)) {
      for (std::uint32_t i = block.first_op; i < block.first_op + block.op_count; ++i, ++id) {
        const Op& op = schedule_->ops[i];
        if (op.work.kind == WorkKind::kTransfer)
          add(id, op.stream, begin, arrived);
        else if (op.work.kind == WorkKind::kMemory)
          add(id, op.stream, arrived, end);
      }
    }
  }

  void write_update() {
    Nanoseconds begin = record_.reduced_ns;
    const Nanoseconds end = begin + tail().update_ns;
    const auto chunks = static_cast<std::size_t>(record_.shape.chunks);
    for (std::size_t c = 0; c < chunks; ++c)
      id_ -= placed(schedule_->sections[schedule_->sections.size() - 1 - c]).places.size();
    for (std::size_t c = 0; c < chunks; ++c) {
      const auto number = static_cast<std::int32_t>(c);
      TimedChunk& chunk = chunk_of(number);
      Placed& update = placed(schedule_->sections[schedule_->sections.size() - chunks + c]);
      const Nanoseconds then = std::min(end, begin + chunk.passes.update.length_ns);
      const std::vector<PassOperation> done = timer_.pass_operations(chunk, ChunkSection::kUpdate);
      update.of_operations =
          update.places.of(chunk.schedule, done, content(number), schedule_->layers);
      write(update, done, begin, then);
      id_ += update.places.size();
      begin = then;
    }
  }

  const std::vector<PassOperation>& operations(std::int32_t chunk, PassKind kind) {
    const std::size_t timed = of_chunk(record_.chunks, record_.shape, {rank_, chunk});
    const auto [at, fresh] = operations_.try_emplace({timed, kind});
    if (!fresh) return at->second;
    TimedChunk& of = record_.timed[timed];
    at->second = timer_.pass_operations(
        of, kind == PassKind::kForward ? ChunkSection::kForward : ChunkSection::kBackward,
        part_of(kind));
    return at->second;
  }

  const ChunkContent& content(std::int32_t chunk) const {
    return of_chunk(parts_, record_.shape, {rank_, chunk});
  }

  /// The operations of a section, and where those of its pass are.
  struct Placed {
    PassPlaces places;
    std::vector<OpId> of_operations;
  };
  Placed& placed(const Section& section) {
    const auto known = places_.find(section.first_block);
    if (known != places_.end()) return known->second;
    return places_.emplace(section.first_block, Placed{{*schedule_, section}, {}}).first->second;
  }

  /// Puts operations between a begin and an end: a pass alone may last longer than among others.
  void write(const Placed& section, const std::vector<PassOperation>& pass, Nanoseconds begin,
             Nanoseconds end) {
    const auto stream = [&](std::size_t i) {
      return section.places.stream(section.of_operations[i]);
    };
    Nanoseconds last = 1;
    for (std::size_t i = 0; i < pass.size(); ++i) {
      if (section.of_operations[i] >= 0 && stream(i) == 0) last = std::max(last, pass[i].end_ns);
    }
    const double scale =
        std::min(1.0, static_cast<double>(end - begin) / static_cast<double>(last));
    const auto placed = [&](Nanoseconds at) {
      const auto scaled = static_cast<Nanoseconds>(scale * static_cast<double>(at));
      return std::clamp(begin + scaled, begin, std::max(begin, end));
    };
    for (std::size_t i = 0; i < pass.size(); ++i) {
      const OpId place = section.of_operations[i];
      if (place < 0) continue;
      Nanoseconds from = placed(pass[i].begin_ns), to = placed(pass[i].end_ns);
      if (section.places.is_reduction(place)) {
        // One after another, beside passes that follow.
        Nanoseconds& free = free_[stream(i)];
        from = std::max(from, free);
        to = free = from + (pass[i].end_ns - pass[i].begin_ns);
      }
      add(id_ + place, stream(i), from, to);
    }
  }

  void add(OpId id, std::uint8_t stream, Nanoseconds begin, Nanoseconds end) {
    if (end <= begin) return;
    Span& span = timeline_.spans.emplace_back();
    span.id = id;
    span.rank = rank_;
    span.stream = stream;
    span.begin_ns = begin;
    span.end_ns = end;
  }

  ChunkTimer& timer_;
  PipelineRecord& record_;
  const std::vector<ChunkContent>& parts_;
  const std::vector<Schedule>& schedules_;
  Timeline& timeline_;
  std::map<Place, Nanoseconds> made_;
  std::map<Place, std::size_t> in_passes_;  // Timeline::passes
  std::map<std::pair<std::size_t, PassKind>, std::vector<PassOperation>> operations_;
  const Schedule* schedule_ = nullptr;      // of the stage
  std::map<std::uint32_t, Placed> places_;  // by a section's first block
  std::vector<Nanoseconds> free_;           // by stream, after the reductions that were written
  std::int32_t rank_ = 0;
  OpId id_ = 0;                                      // of the section's first operation
  std::int32_t first_opened_ = 0, last_opened_ = 0;  // micro-batches
};

}  // namespace

void write_stage_timeline(const SimulatedStep& step, double iteration_s, ChunkTimer& timer,
                          PipelineRecord& record, const StepProgram& program, Timeline& timeline) {
  timeline = {};
  timeline.source = "predicted";
  timeline.step_ns = to_ns(iteration_s);
  for (const Stream& stream : program.stages.front().streams)
    timeline.streams.emplace_back(stream.name);
  Writer writer(timer, record, program.parts, program.stages, timeline);
  for (std::int32_t s = 0; s < record.shape.stages; ++s) {
    timeline.stages[s] = {s, record.shape.chunks, content_of(record, program.parts, s)};
    writer.write_stage(s, to_ns(step.step_s));
  }
  writer.write_hand_overs();
  std::stable_sort(timeline.spans.begin(), timeline.spans.end(), [](const Span& a, const Span& b) {
    return std::pair(a.rank, a.begin_ns) < std::pair(b.rank, b.begin_ns);
  });
}

}  // namespace shardwright::sim
