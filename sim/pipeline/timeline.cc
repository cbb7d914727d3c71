// SPDX-License-Identifier: Apache-2.0
#include "sim/pipeline/timeline.h"

#include <algorithm>
#include <cmath>

#include "sim/check_modelled.h"
#include "sim/core/check.h"
#include "sim/cost/scale.h"
#include "sim/cost/to_ns.h"
#include "sim/pipeline/opened_chunk.h"

namespace shardwright::sim {
namespace {

SliceKind kind_of(PassKind pass) {
  switch (pass) {
    case PassKind::kForward:
      return SliceKind::kForward;
    case PassKind::kBackward:
      return SliceKind::kBackward;
    case PassKind::kBackwardInput:
      return SliceKind::kInputGradient;
    case PassKind::kBackwardWeight:
      break;
  }
  return SliceKind::kWeightGradient;
}

/// Slices of one stage, one after another; what lies between them is a bubble.
class Track {
 public:
  explicit Track(std::vector<StageSlice>& slices) : slices_(slices) {}

  void add(StageSlice slice) {
    const bool pair = !slices_.empty() && slices_.back().begin_ns == slice.begin_ns &&
                      slices_.back().end_ns == slice.end_ns;
    if (slice.end_ns <= slice.begin_ns) return;
    if (!pair) {
      SHARDWRIGHT_CHECK(slice.begin_ns >= now_, "a slice begins at {}, before {}", slice.begin_ns,
                        now_);
      wait_until(slice.begin_ns);
    }
    slices_.push_back(slice);
    now_ = slice.end_ns;
  }
  void wait_until(Nanoseconds at) {
    if (at > now_) slices_.push_back({SliceKind::kBubble, -1, -1, now_, at});
    now_ = std::max(now_, at);
  }
  void run(SliceKind kind, Nanoseconds length, Nanoseconds limit) {
    add({kind, -1, -1, now_, std::min(limit, now_ + length)});
  }
  Nanoseconds now() const { return now_; }

 private:
  std::vector<StageSlice>& slices_;
  Nanoseconds now_ = 0;
};

/// Passes and blocking transfers of every stage, by begin.
std::vector<std::vector<StageSlice>> pipeline_slices(const PipelineRecord& record) {
  std::vector<std::vector<StageSlice>> stages(static_cast<std::size_t>(record.shape.stages));
  for (const ActionSpan& span : record.pipeline.spans) {
    stages[static_cast<std::size_t>(span.stage)].push_back(
        {kind_of(span.action.kind), span.action.chunk, span.action.micro_batch, span.start,
         span.end});
  }
  for (const TransferSpan& span : record.pipeline.transfers) {
    for (const std::int32_t stage : {span.stage, span.stage + 1}) {
      stages[static_cast<std::size_t>(stage)].push_back(
          {SliceKind::kTransfer, -1, -1, span.start, span.end});
    }
  }
  for (std::vector<StageSlice>& slices : stages) {
    std::stable_sort(slices.begin(), slices.end(), [](const StageSlice& a, const StageSlice& b) {
      return a.begin_ns < b.begin_ns;
    });
  }
  return stages;
}

/// What follows the pipeline: all stages wait for the slowest one's gradients at the norm.
void add_tail(const PipelineRecord& record, std::size_t stage, Nanoseconds unvaried_ns,
              Nanoseconds step_ns, Track& track) {
  const StageTail& tail = record.tails[stage];
  track.wait_until(record.pipeline.stages[stage].end);
  track.run(SliceKind::kDeferred, tail.deferred_ns, record.reduced_ns);
  track.add({SliceKind::kReduction, -1, -1, track.now(), std::min(record.reduced_ns, tail.end_ns)});
  track.wait_until(record.reduced_ns);
  const Nanoseconds updated = record.reduced_ns + record.updated_ns;
  track.run(SliceKind::kOptimizer, tail.update_ns, updated);
  track.run(SliceKind::kGather, tail.gather_ns, updated);
  track.wait_until(updated);
  track.add({SliceKind::kHost, -1, -1, track.now(), unvaried_ns});
  track.add({SliceKind::kVariation, -1, -1, track.now(), step_ns});
}

/// Transfers that nobody stands still for.
std::vector<Transfer> overlapped_transfers(const PipelineRecord& record) {
  std::vector<Transfer> transfers;
  if (record.times.blocking) return transfers;
  const PipelineShape& shape = record.shape;
  for (const ActionSpan& span : record.pipeline.spans) {
    const bool forward = span.action.kind == PassKind::kForward;
    if (span.action.kind == PassKind::kBackwardWeight) continue;
    const ChunkPlace here{span.stage, span.action.chunk};
    const std::optional<ChunkPlace> to =
        forward ? next_chunk(shape, here) : previous_chunk(shape, here);
    if (!to || to->stage == here.stage) continue;
    const bool wraps = std::abs(to->stage - here.stage) != 1;
    const std::int32_t edge = wraps ? shape.stages - 1 : std::min(to->stage, here.stage);
    const Nanoseconds takes = record.times.transfer[static_cast<std::size_t>(edge)];
    if (takes == 0) continue;
    transfers.push_back({here.stage, to->stage, forward, span.action.chunk, span.action.micro_batch,
                         span.end, span.end + takes});
  }
  return transfers;
}

}  // namespace

std::string_view name_of(SliceKind kind) {
  constexpr std::string_view kNames[] = {
      "forward",           "backward",         "input gradient", "weight gradient",
      "deferred gradient", "bubble",           "transfer",       "gradient reduction",
      "optimizer",         "parameter gather", "host",           "nodes vary"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string_view name_of(CommGroup group) {
  switch (group) {
    case CommGroup::kTensor:
      return "tensor";
    case CommGroup::kContext:
      return "context";
    case CommGroup::kExpert:
      return "expert";
    case CommGroup::kPipeline:
      return "pipeline";
    case CommGroup::kExpertData:
    case CommGroup::kData:
    case CommGroup::kShard:
    case CommGroup::kReplicate:
    case CommGroup::kSecondShard:
      return "data";
    case CommGroup::kWorld:
      break;
  }
  return "world";
}

ParallelTimeline parallel_timeline(const Model& model, const profiles::Profile& profile,
                                   const Plan& plan) {
  check_plan(plan, model, profile.cluster.gpus_per_node);
  check_modelled(model, plan, profile);
  ProgramCache programs(model, profile.stack, profile.cluster.gpu);
  PipelineSimulator simulator(model, profile, programs);
  PipelineRecord record;
  const PipelineStep step = simulator.run(plan, &record);
  ParallelTimeline timeline;
  timeline.shape = record.shape;
  timeline.parts = step.parts;
  timeline.memory =
      stage_memory(model, plan, profile, layout_of(plan, profile.cluster), step.parts);
  timeline.pipeline_ns = record.pipeline.makespan;
  timeline.step_ns = to_ns(step.step_s * scale_factor(profile, plan));
  timeline.bubble = step.bubble;
  timeline.transfers = overlapped_transfers(record);
  const std::vector<std::vector<StageSlice>> passes = pipeline_slices(record);
  for (std::size_t s = 0; s < passes.size(); ++s) {
    StageTimeline& stage = timeline.stages.emplace_back();
    Track track(stage.slices);
    for (const StageSlice& slice : passes[s]) track.add(slice);
    add_tail(record, s, to_ns(step.step_s), timeline.step_ns, track);
  }
  for (const ReductionSpan& span : record.reductions) {
    timeline.stages[static_cast<std::size_t>(span.stage)].reductions.push_back(
        {SliceKind::kReduction, -1, -1, span.begin_ns, span.end_ns});
  }
  open_chunks(simulator.timer(), record, timeline);
  return timeline;
}

}  // namespace shardwright::sim
