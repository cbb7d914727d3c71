// SPDX-License-Identifier: Apache-2.0
#include "sim/trace/observations.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/core/base/error.h"
#include "sim/core/base/numbers.h"
#include "sim/core/plan.h"
#include "sim/trace/step_trace.h"

namespace shardwright::sim {

namespace {

using profiles::Observation;
using profiles::ObservationSet;
using profiles::ObservationSource;

// Less than any kernel takes: the executor has nothing to do there.
constexpr Nanoseconds kNothingNs = 300;

/// Operations that this program's executor leaves to another (exec/executor.cc): sharded
/// reductions add onto their sum themselves, and the update divides. What their slices last is the
/// clock's doing and says nothing of a copy.
bool left_to_another(const Op& op) {
  return op.kind == OpKind::kScale ||
         (op.kind == OpKind::kAccumulate && op.phase == Phase::kReduce);
}

class Observer {
 public:
  Observer(const StepTrace& trace, std::span<const Schedule> stages, std::int64_t gpus_per_node)
      : trace_(trace), schedule_(stages.front()), gpus_per_node_(gpus_per_node) {
    for (const Schedule& stage : stages) {
      for_each_op(stage, [&](const OpInstance&, const Op& op) { ops_.push_back(&op); });
    }
    const TraceOrigin& origin = trace.origin;
    copies_on_gpus_ = origin.device == "cuda" && origin.transport == "local";
    if (origin.devices > 0) {
      sharers_ = static_cast<std::int32_t>((schedule_.world_ranks() - 1) / origin.devices + 1);
    }
  }

  ObservationSet observe() {
    read_source();
    const std::map<LaneKey, Lane> lanes = lanes_of(trace_.timeline);
    for (const auto& [key, lane] : lanes) read_lane(lane, key.second, key.first);
    read_steps(lanes);
    if (set_.observations.empty()) {
      throw Error(
          fmt::format("{}: no slice has an operation of a schedule, expected a trace of "
                      "run --trace",
                      trace_.name));
    }
    set_.notes = trace_.left_out;
    if (trace_.origin.device.empty()) {
      set_.notes.push_back(fmt::format(
          "{} is a predicted trace, so what is fitted to it is the prediction", trace_.name));
    }
    for (const profiles::LeftOut& left_out : {foreign_, empty_, no_link_, early_}) {
      if (left_out.count > 0) set_.left_out.push_back(left_out);
    }
    return std::move(set_);
  }

 private:
  void read_source() {
    const TraceOrigin& origin = trace_.origin;
    ObservationSource& source = set_.sources.emplace_back();
    source.file = trace_.name;
    source.format = "shardwright";
    source.gpu = origin.device_name;
    source.sm_count = origin.units;
    source.memory_bytes = origin.memory_bytes;
    source.world_size = schedule_.world_ranks();
    source.software = origin.software;
    source.date = origin.date;
    source.step_s = origin.step_s;
    foreign_.count = trace_.foreign;
    foreign_.seconds = trace_.foreign_s;
    set_.kernel_seconds = trace_.foreign_s;
  }

  const Op& op_of(OpId id) const { return *ops_[static_cast<std::size_t>(id)]; }

  bool collective(const Span& span) const {
    return op_of(span.id).work.kind == WorkKind::kCollective;
  }
  bool is_message(const Span& span) const { return op_of(span.id).peer >= 0; }

  /// Whether ranks wait for each other in it.
  bool waits(const Op& op) const {
    return schedule_.world_ranks() > 1 &&
           (op.work.kind == WorkKind::kCollective || op.kind == OpKind::kGradientNorm);
  }

  /// Those of a unit's own collectives are the mesh's.
  const RankGroup& group_of(const Op& op) const {
    return op.collective ? schedule_.layout.group(op.work.group) : schedule_.group(op.work.group);
  }

  std::int64_t ranks_of(const Op& op) const {
    return op.work.kind == WorkKind::kCollective ? group_of(op).size : schedule_.world_ranks();
  }

  std::int64_t nodes_of(const Op& op) const {
    const std::int64_t per_node = std::max<std::int64_t>(1, gpus_per_node_);
    const std::int64_t in_node = op.collective ? group_of(op).members_per_node(per_node) : per_node;
    return (ranks_of(op) - 1) / in_node + 1;
  }

  void read_lane(const Lane& lane, std::int32_t rank, std::int32_t step) {
    std::vector<std::pair<Nanoseconds, Nanoseconds>> kernels, collectives;
    for (const Span* span : lane.spans) {
      if (is_message(*span)) continue;  // a copy beside, which kernels do not feel
      (collective(*span) ? collectives : kernels).emplace_back(span->begin_ns, span->end_ns);
    }
    const SpanUnion kernel_times(std::move(kernels));
    const SpanUnion collective_times(std::move(collectives));
    struct LaneSum {
      Nanoseconds ns = 0, contended_ns = 0;
    };
    std::map<OpId, LaneSum> sums;
    for (const Span* span : lane.spans) {
      if (is_message(*span)) {
        if (op_of(span->id).kind == OpKind::kReceive) observe_message(*span);
        continue;
      }
      const SpanUnion& others = collective(*span) ? kernel_times : collective_times;
      LaneSum& sum = sums[span->id];
      sum.ns += span->end_ns - span->begin_ns;
      if (trace_.origin.streams != "virtual")
        sum.contended_ns += others.overlap(span->begin_ns, span->end_ns);
    }
    for (const auto& [id, sum] : sums) {
      set_.kernel_seconds += seconds_of(sum.ns);
      observe_operation(id, sum.ns, sum.contended_ns, rank, step);
    }
    if (trace_.origin.streams == "inline") {
      read_gaps(lane, rank, step);
    } else {
      read_host(lane, rank, step);
    }
  }

  Observation& observe(const Op& op, Nanoseconds ns, std::int32_t rank, std::int32_t step) {
    Observation& seen = set_.observations.emplace_back();
    seen.op = op.kind;
    seen.phase = op.phase;
    seen.seconds = seconds_of(ns);
    seen.rank = rank;
    seen.step = step;
    seen.sharers = sharers_;
    return seen;
  }

  /// A message as a collective of two ranks. What it lasts counts from when it was sent; one that
  /// was there before it was asked for shows the end of it only.
  void observe_message(const Span& span) {
    const Op& op = op_of(span.id);
    const auto sent = trace_.ready_ns.find({span.id, span.rank, span.step});
    const bool known = sent != trace_.ready_ns.end();
    const Nanoseconds begin = known ? std::max(sent->second, span.begin_ns) : span.begin_ns;
    const Nanoseconds ns = span.end_ns - begin;
    const bool whole = known ? sent->second >= span.begin_ns : trace_.origin.device.empty();
    if (copies_on_gpus_ || !whole || ns < kNothingNs) {
      profiles::LeftOut& left_out = copies_on_gpus_ ? no_link_ : !whole ? early_ : empty_;
      ++left_out.count;
      left_out.seconds += seconds_of(ns);
      return;
    }
    Observation& seen = observe(op, ns, span.rank, span.step);
    seen.work.kind = WorkKind::kCollective;
    seen.work.group = CommGroup::kPipeline;
    seen.work.bytes = op.work.bytes;
    seen.ranks = 2;
    seen.nodes = leaves_node(span, op.peer) ? 2 : 1;
  }

  bool leaves_node(const Span& span, std::int64_t peer_stage) const {
    const RankMesh& mesh = schedule_.layout;
    RankPlace place;  // a prediction has a rank for each stage
    if (!trace_.origin.device.empty()) place = mesh.place_of(span.rank);
    const auto node = [&](std::int64_t stage) {
      place.pp = stage;
      return mesh.rank_of(place) / std::max<std::int64_t>(1, gpus_per_node_);
    };
    return node(trace_.timeline.stage_of(span.rank)) != node(peer_stage);
  }

  void observe_operation(OpId id, Nanoseconds ns, Nanoseconds contended_ns, std::int32_t rank,
                         std::int32_t step) {
    const Op& op = op_of(id);
    const bool executed = !trace_.origin.device.empty();
    const bool works = op.work.kind != WorkKind::kNone && op.work.kind != WorkKind::kHost &&
                       (op.work.kind != WorkKind::kMemory || op.work.bytes > 0) &&
                       !(executed && left_to_another(op));
    const bool copies =
        copies_on_gpus_ && op.work.kind == WorkKind::kCollective && ranks_of(op) > 1;
    if (!works || ns < kNothingNs || copies) {
      profiles::LeftOut& left_out = works && ns >= kNothingNs ? no_link_ : empty_;
      ++left_out.count;
      left_out.seconds += seconds_of(ns);
      return;
    }
    Observation& seen = observe(op, ns, rank, step);
    seen.work = op.work;
    // Other patterns (rings, all-to-all) have no size that could be fitted to.
    const bool sized = op.collective && op.collective.pattern == Pattern::kCollective;
    if (sized && op.work.kind == WorkKind::kCollective)
      seen.work.bytes = static_cast<std::int64_t>(op.collective.bytes);
    seen.contended =
        std::clamp(static_cast<double>(contended_ns) / static_cast<double>(ns), 0.0, 1.0);
    if (!waits(op)) return;
    seen.ranks = ranks_of(op);
    seen.nodes = nodes_of(op);
    seen.instance = instance_of(op, step, id, rank);
  }

  /// Numbers what the ranks of one group do together.
  std::int64_t instance_of(const Op& op, std::int32_t step, OpId id, std::int32_t rank) {
    const std::int64_t group =
        op.work.kind == WorkKind::kCollective ? group_of(op).number_of(rank) : 0;
    const auto fresh = static_cast<std::int64_t>(instances_seen_.size());
    return instances_seen_.emplace(std::tuple(step, id, group), fresh).first->second;
  }

  void launch(OpId id, Nanoseconds ns, std::uint16_t kernels, std::int32_t rank,
              std::int32_t step) {
    Observation& seen = observe(op_of(id), ns, rank, step);
    seen.work.kind = WorkKind::kHost;
    seen.work.kernels = kernels;
  }

  void read_gaps(const Lane& lane, std::int32_t rank, std::int32_t step) {
    for (std::size_t i = 1; i < lane.spans.size(); ++i) {
      const Nanoseconds gap_ns = lane.spans[i]->begin_ns - lane.spans[i - 1]->end_ns;
      if (gap_ns > 0) launch(lane.spans[i]->id, gap_ns, 1, rank, step);
    }
  }

  void read_host(const Lane& lane, std::int32_t rank, std::int32_t step) {
    for (const Span* span : lane.host) {
      const Op& op = op_of(span->id);
      const Nanoseconds ns = span->end_ns - span->begin_ns;
      if (op.host_waits || op.work.kind == WorkKind::kHost || ns <= 0) continue;
      launch(span->id, ns, op.work.kernels, rank, step);
    }
  }

  /// What the steps took beyond what their slowest rank's spans cover.
  void read_steps(const std::map<LaneKey, Lane>& lanes) {
    std::map<std::int32_t, Nanoseconds> covered;  // by step
    for (const auto& [key, lane] : lanes) {
      if (lane.spans.empty()) continue;
      Nanoseconds end = lane.spans.front()->end_ns;
      for (const Span* span : lane.spans) end = std::max(end, span->end_ns);
      const Nanoseconds length = end - lane.spans.front()->begin_ns;
      if (length <= 0) continue;
      Nanoseconds& most = covered[key.first];
      most = std::max(most, length);
    }
    const std::vector<double>& steps = trace_.origin.step_s;
    if (covered.size() != steps.size()) return;
    std::size_t i = 0;
    for (const auto& [step, length] : covered) {
      const double beyond_s = steps[i++] - seconds_of(length);
      if (beyond_s <= 0) continue;
      Observation seen;
      seen.phase = Phase::kPrepare;
      seen.work.kind = WorkKind::kHost;
      seen.work.kernels = 0;
      seen.seconds = beyond_s;
      seen.step = step;
      set_.observations.push_back(seen);
    }
  }

  const StepTrace& trace_;
  const Schedule& schedule_;  // of the first stage: groups are those of all
  std::int64_t gpus_per_node_;
  std::vector<const Op*> ops_;   // by id
  bool copies_on_gpus_ = false;  // in place of NCCL
  std::int32_t sharers_ = 1;     // ranks of a device
  std::map<std::tuple<std::int32_t, OpId, std::int64_t>, std::int64_t> instances_seen_;
  profiles::LeftOut foreign_{"slices that name no operation of the schedule", 0, 0};
  profiles::LeftOut no_link_{
      "collectives of ranks in one process, copies that say nothing of NCCL or a link", 0, 0};
  profiles::LeftOut early_{
      "messages whose sending the trace does not show, or that waited to be taken", 0, 0};
  profiles::LeftOut empty_{"operations of no work or no duration", 0, 0};
  ObservationSet set_;
};

}  // namespace

ObservationSet observations_of(const StepTrace& trace) {
  const std::vector<Schedule> stages = schedules_of(trace);
  return observations_of(trace, stages, trace.identity->gpus_per_node);
}

ObservationSet observations_of(const StepTrace& trace, std::span<const Schedule> stages,
                               std::int64_t gpus_per_node) {
  return Observer(trace, stages, gpus_per_node).observe();
}

namespace {

/// The messages from one stage to another on one channel.
struct Messages {
  std::vector<OpId> sends, receives;  // in the order of the step
};

std::map<OpId, OpId> sends_by_receive(const std::map<OpId, TracedOperation>& operations) {
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, Messages> channels;
  for (const auto& [id, operation] : operations) {
    if (operation.peer < 0) continue;
    if (operation.kind == OpKind::kSend)
      channels[{operation.stage, operation.peer, operation.channel}].sends.push_back(id);
    if (operation.kind == OpKind::kReceive)
      channels[{operation.peer, operation.stage, operation.channel}].receives.push_back(id);
  }
  std::map<OpId, OpId> sends;
  for (const auto& [channel, messages] : channels) {
    if (messages.sends.size() != messages.receives.size()) continue;
    for (std::size_t i = 0; i < messages.sends.size(); ++i)
      sends[messages.receives[i]] = messages.sends[i];
  }
  return sends;
}

}  // namespace

std::map<SpanKey, Nanoseconds> sent_messages(const StepTrace& trace) {
  std::map<SpanKey, Nanoseconds> sent;
  const std::map<OpId, OpId> sends = sends_by_receive(trace.operations);
  if (sends.empty()) return sent;
  std::map<std::int32_t, std::vector<std::int32_t>> ranks_of;  // by stage
  for (const auto& [rank, of] : trace.timeline.stages) ranks_of[of.stage].push_back(rank);
  std::map<SpanKey, Nanoseconds> begins;
  for (const Span& span : trace.timeline.spans) {
    if (trace.operations.at(span.id).kind != OpKind::kSend) continue;
    const auto [at, fresh] = begins.try_emplace({span.id, span.rank, span.step}, span.begin_ns);
    if (!fresh) at->second = std::min(at->second, span.begin_ns);
  }
  for (const Span& span : trace.timeline.spans) {
    const auto send = sends.find(span.id);
    if (send == sends.end()) continue;
    const std::vector<std::int32_t>& here = ranks_of[trace.timeline.stage_of(span.rank)];
    const std::vector<std::int32_t>& there = ranks_of[trace.operations.at(span.id).peer];
    const auto place = static_cast<std::size_t>(
        std::lower_bound(here.begin(), here.end(), span.rank) - here.begin());
    if (place >= there.size()) continue;
    const auto begin = begins.find({send->second, there[place], span.step});
    if (begin != begins.end()) sent[{span.id, span.rank, span.step}] = begin->second;
  }
  return sent;
}

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

MeetingRanks::MeetingRanks(const StepTrace& trace) {
  if (!trace.identity || trace.origin.device.empty()) return;
  const TraceIdentity& identity = *trace.identity;
  try {
    check_plan(identity.plan, model_of(identity, trace.name), identity.gpus_per_node);
  } catch (const Error&) {  // a stranger's: nothing but the ranks themselves is known
    return;
  }
  mesh_.emplace(identity.plan, 1);
}

std::int64_t MeetingRanks::group_of(const TracedOperation& operation, std::int32_t rank) {
  if (!mesh_ || !operation.group || rank < 0 || rank >= mesh_->ranks) return 0;
  // A trace does not tell those apart that divide the replicas.
  const CommGroup group = told_as(*operation.group);
  const auto [at, fresh] = first_.try_emplace({group, rank}, 0);
  if (fresh) at->second = mesh_->members(group, rank).front();
  return at->second;
}

CommGroup MeetingRanks::largest() const {
  if (mesh_ && mesh_->pp > 1) return CommGroup::kPipeline;
  return mesh_ && mesh_->dp == 1 && mesh_->tp > 1 ? CommGroup::kTensor : CommGroup::kData;
}

namespace {

/// The pass that each operation of a stage belongs to, by its first id.
class PassesOfStage {
 public:
  explicit PassesOfStage(const Schedule& schedule) : schedule_(schedule) {
    std::uint32_t section = ~std::uint32_t{0};
    for_each_op(schedule, [&](const OpInstance& at, const Op& op) {
      if (op.kind == OpKind::kGradientNorm) norms_.insert(at.id);
      if (at.section == section) return;
      section = at.section;
      sections_[at.id] = section;
    });
  }
  bool is_norm(OpId id) const { return norms_.contains(id); }
  const Section& section_of(OpId id) const {
    return schedule_.sections[std::prev(sections_.upper_bound(id))->second];
  }
  /// Gradients of a tied embedding, behind the passes.
  bool sums(const Section& section) const {
    return schedule_.blocks[section.first_block].phase == Phase::kReduce;
  }

 private:
  const Schedule& schedule_;
  std::map<OpId, std::uint32_t> sections_;
  std::set<OpId> norms_;
};

StageOfRank stage_of_rank(const Schedule& schedule, std::int32_t stage) {
  std::string content;
  const auto add = [&](const std::string& what) {
    content += content.empty() ? what : ", " + what;
  };
  for (const Schedule::UnitRange& range : schedule.stage_layers) {
    if (range.count == 0) continue;
    add(range.count == 1
            ? fmt::format("layer {}", range.first - 1)
            : fmt::format("layers {} to {}", range.first - 1, range.first + range.count - 2));
  }
  if (schedule.unit_sizes.embedding > 0) add("embedding");
  if (schedule.unit_sizes.head > 0) add("head");
  return {stage, static_cast<std::int32_t>(schedule.stage_layers.size()), content};
}

/// Of one rank in one step, in order of begin, without gaps since the step began.
void append_passes(const PassesOfStage& stage, Nanoseconds step_begin_ns, Nanoseconds met_ns,
                   const std::vector<const Span*>& spans, std::vector<PassSpan>& passes) {
  const std::size_t first = passes.size();
  const PassSpan like{StageWork::kBubble, spans.front()->rank, spans.front()->step};
  for (const Span* span : spans) {
    const Section& section = stage.section_of(span->id);
    const std::optional<Action>& action = section.pass;
    PassSpan pass = like;
    pass.begin_ns = span->begin_ns;
    pass.end_ns = span->end_ns;
    if (action) {
      pass.work = static_cast<StageWork>(action->kind);
      pass.chunk = action->chunk;
      pass.micro_batch = action->micro_batch;
    } else {
      pass.work = stage.sums(section) ? StageWork::kReduction : StageWork::kOptimizer;
      // A stage that waits for others at the norm does not update yet.
      if (pass.work == StageWork::kOptimizer)
        pass.begin_ns = std::clamp(met_ns, pass.begin_ns, pass.end_ns);
    }
    PassSpan* last = passes.size() > first ? &passes.back() : nullptr;
    const bool goes_on = last != nullptr && last->work == pass.work && last->chunk == pass.chunk &&
                         last->micro_batch == pass.micro_batch;
    if (goes_on) {
      last->end_ns = std::max(last->end_ns, pass.end_ns);
      continue;
    }
    const Nanoseconds end = last != nullptr ? last->end_ns : step_begin_ns;
    if (pass.begin_ns > end) {
      PassSpan bubble = like;
      bubble.begin_ns = end;
      bubble.end_ns = pass.begin_ns;
      passes.push_back(bubble);
    }
    pass.begin_ns = std::max(pass.begin_ns, end);
    pass.end_ns = std::max(pass.end_ns, pass.begin_ns);
    passes.push_back(pass);
  }
}

}  // namespace

void add_measured_passes(const std::vector<Schedule>& stages, const RankMesh& mesh,
                         Timeline& timeline) {
  if (mesh.pp == 1) return;
  std::vector<PassesOfStage> passes_of;
  for (const Schedule& stage : stages) passes_of.emplace_back(stage);
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<const Span*>> by_rank;  // and step
  std::map<std::int32_t, Nanoseconds> begins;  // of steps: the first one at 0, others at a span
  for (const Span& span : timeline.spans) {
    Nanoseconds& begin = begins.try_emplace(span.step, span.begin_ns).first->second;
    begin = std::min(begin, span.begin_ns);
    if (span.stream == 0 && span.id >= 0) by_rank[{span.rank, span.step}].push_back(&span);
  }
  if (!begins.empty()) begins.begin()->second = 0;
  const std::map<LaneKey, Nanoseconds> meetings = norm_meetings(timeline, [&](OpId id) {
    return std::any_of(passes_of.begin(), passes_of.end(),
                       [id](const PassesOfStage& stage) { return stage.is_norm(id); });
  });
  for (auto& [key, spans] : by_rank) {
    const auto stage = static_cast<std::int32_t>(mesh.place_of(key.first).pp);
    const Schedule& schedule = stages[static_cast<std::size_t>(stage)];
    timeline.stages[key.first] = stage_of_rank(schedule, stage);
    std::stable_sort(spans.begin(), spans.end(),
                     [](const Span* a, const Span* b) { return a->begin_ns < b->begin_ns; });
    const auto met = meetings.find({key.second, key.first});
    append_passes(passes_of[static_cast<std::size_t>(stage)], begins.at(key.second),
                  met == meetings.end() ? 0 : met->second, spans, timeline.passes);
  }
}

}  // namespace shardwright::sim
