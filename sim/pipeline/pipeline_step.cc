// SPDX-License-Identifier: Apache-2.0
#include "sim/pipeline/pipeline_step.h"

#include <algorithm>
#include <numeric>

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

}  // namespace shardwright::sim
