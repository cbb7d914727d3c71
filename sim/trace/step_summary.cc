// SPDX-License-Identifier: Apache-2.0
#include "sim/trace/step_summary.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "profiles/gpu_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/numbers.h"
#include "sim/predict.h"
#include "sim/trace/observations.h"

namespace shardwright::sim {

namespace {

constexpr double kSlowRank = 0.1;
constexpr double kSlowStep = 0.25;

double median(const std::vector<double>& values) {
  return quantile(values, 0.5);
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// From the first begin of some spans to the last end.
struct Extent {
  Nanoseconds begin_ns = std::numeric_limits<Nanoseconds>::max();
  Nanoseconds end_ns = std::numeric_limits<Nanoseconds>::min();
  double seconds() const { return seconds_of(end_ns - begin_ns); }
  template <typename AnySpan>
  void take_in(const AnySpan& span) {
    begin_ns = std::min(begin_ns, span.begin_ns);
    end_ns = std::max(end_ns, span.end_ns);
  }
};

struct Sums {
  Nanoseconds duration_ns = 0, exposed_ns = 0, contended_ns = 0;
  Nanoseconds awaited_ns = 0;  // before, until a message was sent
};

/// A lane's time, shared out to its operations.
struct SharedLane {
  Nanoseconds kernels_ns = 0;
  Nanoseconds idle_ns = 0, met_ns = 0;  // met: of idle, until the last rank came to the norm
  std::array<Nanoseconds, kStageWorks> idle_by_work_ns{};
  Nanoseconds passes_ns = 0, closed_ns = 0;  // closed: passes without operations in the trace
  std::map<OpId, Sums> sums;
};

/// Finds what a stage does in moments of no operation; these come in order.
class IdleMoments {
 public:
  explicit IdleMoments(const std::vector<const PassSpan*>& passes)
      : passes_(passes), idle_ns_(passes.size()) {}

  void add(Nanoseconds begin, Nanoseconds end) {
    while (at_ < passes_.size() && passes_[at_]->end_ns <= begin) ++at_;
    for (std::size_t i = at_; i < passes_.size() && passes_[i]->begin_ns < end; ++i) {
      // Two passes that run as one block are one.
      if (i > at_ && passes_[i]->begin_ns == passes_[i - 1]->begin_ns) continue;
      const Nanoseconds from = std::max(begin, passes_[i]->begin_ns);
      idle_ns_[i] += std::max<Nanoseconds>(0, std::min(end, passes_[i]->end_ns) - from);
    }
  }

  void finish(SharedLane& lane) const {
    for (std::size_t i = 0; i < passes_.size(); ++i) {
      if (i > 0 && passes_[i]->begin_ns == passes_[i - 1]->begin_ns) continue;
      const Nanoseconds length = passes_[i]->end_ns - passes_[i]->begin_ns;
      const bool closed = is_pass(passes_[i]->work) && idle_ns_[i] == length;
      if (is_pass(passes_[i]->work)) lane.passes_ns += length;
      if (closed)
        lane.closed_ns += length;
      else
        lane.idle_by_work_ns[static_cast<std::size_t>(passes_[i]->work)] += idle_ns_[i];
    }
  }

 private:
  const std::vector<const PassSpan*>& passes_;
  std::vector<Nanoseconds> idle_ns_;  // by pass
  std::size_t at_ = 0;
};

/// `step` is from the first operation of any rank to the last.
SharedLane share_out(const Lane& lane, const StepTrace& trace, const Extent& step) {
  struct Edge {
    Nanoseconds at_ns;
    bool begins;
    std::size_t span;
  };
  std::vector<Edge> edges;
  std::vector<bool> collective;
  std::vector<Nanoseconds> ready;
  std::vector<std::pair<Nanoseconds, Nanoseconds>> norms;  // until all ranks were there
  for (std::size_t i = 0; i < lane.spans.size(); ++i) {
    const Span& span = *lane.spans[i];
    collective.push_back(trace.operations.at(span.id).communicates());
    ready.push_back(ready_ns(trace, span));
    // Of a pipeline that is its drain.
    if (lane.passes.empty() && trace.operations.at(span.id).kind == OpKind::kGradientNorm)
      norms.emplace_back(span.begin_ns, ready.back());
    edges.push_back({ready.back(), true, i});
    edges.push_back({span.end_ns, false, i});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return std::tie(a.at_ns, a.begins, a.span) < std::tie(b.at_ns, b.begins, b.span);
  });
  SharedLane shared;
  // Kernels by stream, collectives in the order in which they became resident.
  std::set<std::pair<std::uint8_t, std::size_t>> kernels;
  std::set<std::size_t> collectives;
  const auto sums_of = [&](std::size_t span) -> Sums& { return shared.sums[lane.spans[span]->id]; };
  Nanoseconds before_ns = step.begin_ns;
  IdleMoments idle(lane.passes);
  const auto account = [&](Nanoseconds until_ns) {
    const Nanoseconds from_ns = before_ns, dt = until_ns - from_ns;
    before_ns = until_ns;
    if (dt <= 0) return;
    if (kernels.empty() && collectives.empty()) {
      shared.idle_ns += dt;
      idle.add(from_ns, until_ns);
      for (const auto& [begin, end] : norms)
        shared.met_ns +=
            std::max<Nanoseconds>(0, std::min(until_ns, end) - std::max(from_ns, begin));
      return;
    }
    const std::size_t owner = kernels.empty() ? *collectives.begin() : kernels.begin()->second;
    sums_of(owner).exposed_ns += dt;
    if (kernels.empty() || collectives.empty()) return;
    sums_of(owner).contended_ns += dt;
    for (const std::size_t c : collectives) sums_of(c).contended_ns += dt;
  };
  for (const Edge& edge : edges) {
    account(edge.at_ns);
    const Span& span = *lane.spans[edge.span];
    const bool is_kernel = !collective[edge.span];
    if (edge.begins) {
      const Nanoseconds duration = span.end_ns - ready[edge.span];
      sums_of(edge.span).duration_ns += duration;
      sums_of(edge.span).awaited_ns += ready[edge.span] - span.begin_ns;
      if (is_kernel) shared.kernels_ns += duration;
      if (duration <= 0) continue;
      if (is_kernel) {
        kernels.insert({span.stream, edge.span});
      } else {
        collectives.insert(edge.span);
      }
    } else if (is_kernel) {
      kernels.erase({span.stream, edge.span});
    } else {
      collectives.erase(edge.span);
    }
  }
  account(step.end_ns);
  idle.finish(shared);
  return shared;
}

class Summary {
 public:
  explicit Summary(const StepTrace& trace) : trace_(trace), meeting_(trace) {
    const std::map<LaneKey, Lane> lanes = lanes_of(trace.timeline);
    for (const std::vector<Span>* spans : {&trace.timeline.spans, &trace.timeline.host}) {
      for (const Span& span : *spans) extents_[span.step].take_in(span);
    }
    for (const PassSpan& span : trace.timeline.passes) extents_[span.step].take_in(span);
    for (const auto& [key, lane] : lanes) {
      if (lane.spans.empty()) continue;
      lanes_[key] = share_out(lane, trace, extents_[key.first]);
      ranks_of_[trace.timeline.stage_of(key.second)].push_back(key);
    }
    summary_.stage_share = 1.0 / static_cast<double>(std::max<std::size_t>(1, ranks_of_.size()));
    if (lanes_.empty()) {
      throw Error(
          fmt::format("{}: no slice has an operation of a schedule, expected a trace of "
                      "predict --trace or run --trace",
                      trace.name));
    }
  }

  StepSummary read() {
    read_steps();
    read_ranks();
    read_operations();
    summary_.pipeline = pipeline_of(trace_);
    if (summary_.pipeline && summary_.pipeline->stages.size() != ranks_of_.size())
      summary_.pipeline.reset();
    read_communication();
    return std::move(summary_);
  }

 private:
  void read_steps() {
    std::map<std::int32_t, double> lengths;  // by step
    std::set<std::int32_t> ranks;
    for (const auto& [key, lane] : lanes_) {
      lengths[key.first] = extents_[key.first].seconds();
      ranks.insert(key.second);
    }
    const std::vector<double> noted = trace_.origin.step_s;
    std::vector<double> steps, beyond;
    std::size_t i = 0;
    for (auto& [step, length] : lengths) {
      // A step is longer than its operations: the batch goes up before, numbers come down after.
      const double whole = noted.size() == lengths.size() ? std::max(length, noted[i]) : length;
      beyond.push_back(whole - length);
      length = whole;
      steps.push_back(length);
      ++i;
    }
    summary_.step_s = median(steps);
    summary_.steps = static_cast<std::int64_t>(steps.size());
    summary_.ranks = static_cast<std::int64_t>(ranks.size());
    for (const auto& [step, length] : lengths) {
      const double by = length / summary_.step_s - 1;
      if (by > kSlowStep) summary_.slow_steps.push_back({step, by});
    }
    for (const auto& of_stage : ranks_of_) {
      const std::vector<LaneKey>& lanes = of_stage.second;
      const auto mean_of = [&](auto&& of_lane) {
        return median_of(lanes, of_lane) * summary_.stage_share;
      };
      summary_.idle_s += mean_of([](const SharedLane& lane) { return lane.idle_ns; });
      summary_.met_s += mean_of([](const SharedLane& lane) { return lane.met_ns; });
      summary_.closed_s += mean_of([](const SharedLane& lane) { return lane.closed_ns; });
      for (std::size_t work = 0; work < kStageWorks; ++work) {
        summary_.idle_by_work_s[work] +=
            mean_of([&](const SharedLane& lane) { return lane.idle_by_work_ns[work]; });
      }
    }
    summary_.idle_s += median(beyond);
  }

  template <typename OfLane>
  double median_of(const std::vector<LaneKey>& lanes, const OfLane& of_lane) const {
    std::vector<double> values;
    for (const LaneKey& key : lanes) values.push_back(seconds_of(of_lane(lanes_.at(key))));
    return median(values);
  }

  /// Of all passes of a stage to those that have their operations in the trace.
  double opened_share(const std::vector<LaneKey>& lanes) const {
    Nanoseconds passes = 0, closed = 0;
    for (const LaneKey& key : lanes) {
      passes += lanes_.at(key).passes_ns;
      closed += lanes_.at(key).closed_ns;
    }
    return passes > closed ? static_cast<double>(passes - closed) / static_cast<double>(passes) : 1;
  }

  static std::size_t at(CommGroup group) { return static_cast<std::size_t>(told_as(group)); }

  /// The group of an operation that communicates.
  static CommGroup group_of(const TracedOperation& operation) {
    return operation.group.value_or(CommGroup::kData);
  }

  /// Messages are in the trace also where the operations of their passes are not.
  static double traced_share(CommGroup group, double opened) {
    return group == CommGroup::kPipeline ? 1 : opened;
  }

  /// In which nothing else runs, by group: ranks' means in each step, and their median.
  std::array<double, kCommGroups> exposed_of(const std::vector<LaneKey>& lanes,
                                             double opened) const {
    std::array<std::map<std::int32_t, std::vector<double>>, kCommGroups> of_steps;
    for (const LaneKey& key : lanes) {
      const SharedLane& lane = lanes_.at(key);
      std::array<double, kCommGroups> exposed_ns{};
      for (const auto& [id, sums] : lane.sums) {
        const TracedOperation& operation = trace_.operations.at(id);
        if (!operation.communicates()) continue;
        const CommGroup group = group_of(operation);
        exposed_ns[at(group)] += static_cast<double>(sums.exposed_ns) / traced_share(group, opened);
      }
      exposed_ns[at(meeting_.largest())] += static_cast<double>(lane.met_ns);
      // What a stage communicates in moments of no operation.
      for (const auto& [work, group] : {std::pair(StageWork::kTransfer, CommGroup::kPipeline),
                                        std::pair(StageWork::kReduction, CommGroup::kData),
                                        std::pair(StageWork::kGather, CommGroup::kData)})
        exposed_ns[at(group)] +=
            static_cast<double>(lane.idle_by_work_ns[static_cast<std::size_t>(work)]);
      for (std::size_t group = 0; group < exposed_ns.size(); ++group)
        of_steps[group][key.first].push_back(exposed_ns[group] * 1e-9);
    }
    std::array<double, kCommGroups> exposed_s{};
    for (std::size_t group = 0; group < exposed_s.size(); ++group) {
      std::vector<double> means;
      for (const auto& [step, ranks] : of_steps[group]) means.push_back(mean(ranks));
      exposed_s[group] = median(means);
    }
    return exposed_s;
  }

  /// Of one stage, by group.
  Communication communication_of(std::int32_t stage, const std::vector<LaneKey>& lanes) const {
    Communication groups{};
    const double opened = opened_share(lanes);
    const std::array<double, kCommGroups> exposed_s = exposed_of(lanes, opened);
    for (std::size_t group = 0; group < groups.size(); ++group)
      groups[group].exposed_s = exposed_s[group];
    for (const auto& [id, times] : summary_.operations) {
      const TracedOperation& operation = times.operation;
      if (operation.stage != stage) continue;
      if (operation.kind == OpKind::kGradientNorm)
        groups[at(meeting_.largest())].waiting_s += times.awaited_s;
      // A message is counted where it is received.
      if (!operation.communicates() || operation.kind == OpKind::kSend) continue;
      const CommGroup group = group_of(operation);
      const double share = traced_share(group, opened);
      groups[at(group)].transfer_s += times.transfer_s / share;
      groups[at(group)].waiting_s += times.waiting_s() / share;
    }
    groups[at(CommGroup::kPipeline)].transfer_s += median_of(lanes, [](const SharedLane& lane) {
      return lane.idle_by_work_ns[static_cast<std::size_t>(StageWork::kTransfer)];
    });
    return groups;
  }

  void read_communication() {
    CommunicationSummary& summary = summary_.communication;
    std::vector<Communication> stages;
    for (const auto& [stage, lanes] : ranks_of_) {
      stages.push_back(communication_of(stage, lanes));
      for (const GroupTimes& group : stages.back()) {
        summary.transfer_s += group.transfer_s * summary_.stage_share;
        summary.waiting_s += group.waiting_s * summary_.stage_share;
      }
    }
    if (summary_.pipeline) {
      for (std::size_t s = 0; s < stages.size(); ++s)
        summary_.pipeline->stages[s].communication = stages[s];
    }
    summary.groups = stages[summary_.pipeline ? summary_.pipeline->limiting() : 0];
  }

  void read_ranks() {
    std::map<std::int32_t, std::vector<double>> kernels;  // by rank
    for (const auto& [key, lane] : lanes_)
      kernels[key.second].push_back(static_cast<double>(lane.kernels_ns));
    std::vector<double> all;
    std::map<std::int32_t, double> of_rank;
    for (const auto& [rank, times] : kernels) all.push_back(of_rank[rank] = median(times));
    // Of two, the faster one is what the slower one is held against.
    std::sort(all.begin(), all.end());
    const double usual = all[(all.size() - 1) / 2];
    for (const auto& [rank, time] : of_rank) {
      if (usual > 0 && time / usual - 1 > kSlowRank) {
        summary_.slow_ranks.push_back({rank, time / usual - 1});
      }
    }
  }

  void read_operations() {
    std::set<OpId> ids;
    for (const auto& [key, lane] : lanes_) {
      for (const auto& [id, sums] : lane.sums) ids.insert(id);
    }
    std::map<std::string, std::vector<double>> alone;
    for (const OpId id : ids) {
      OperationTimes& times = summary_.operations[id];
      times.operation = trace_.operations.at(id);
      std::vector<double> durations, exposed, contended, awaited;
      std::map<std::pair<std::int32_t, std::int64_t>, double> least;  // by step and group
      for (const LaneKey& key : ranks_of_.at(times.operation.stage)) {
        const SharedLane& lane = lanes_.at(key);
        const auto at = lane.sums.find(id);
        // A lane without it counts: there it takes no time.
        const Sums sums = at != lane.sums.end() ? at->second : Sums{};
        durations.push_back(seconds_of(sums.duration_ns));
        exposed.push_back(seconds_of(sums.exposed_ns));
        awaited.push_back(seconds_of(sums.awaited_ns));
        const double share = sums.duration_ns > 0 ? static_cast<double>(sums.contended_ns) /
                                                        static_cast<double>(sums.duration_ns)
                                                  : 0;
        contended.push_back(share);
        if (at == lane.sums.end()) continue;
        const std::int64_t group = meeting_.group_of(times.operation, key.second);
        double& meeting_s = least.try_emplace({key.first, group}, durations.back()).first->second;
        meeting_s = std::min(meeting_s, durations.back());
        if (!times.operation.communicates() && share < kAlone) {
          alone[without_layer(times.operation.name)].push_back(durations.back());
        }
      }
      times.duration_s = median(durations);
      times.exposed_s = median(exposed) * summary_.stage_share;
      times.contended = median(contended);
      times.awaited_s = median(awaited);
      std::vector<double> transfers;
      for (const auto& [meeting, seconds] : least) transfers.push_back(seconds);
      times.transfer_s = times.operation.peer >= 0 ? times.duration_s
                                                   : std::min(median(transfers), times.duration_s);
    }
    for (auto& [name, times] : alone) summary_.alone_s[name] = median(times);
  }

  const StepTrace& trace_;
  MeetingRanks meeting_;
  std::map<std::int32_t, Extent> extents_;  // by step
  std::map<LaneKey, SharedLane> lanes_;
  std::map<std::int32_t, std::vector<LaneKey>> ranks_of_;  // lanes by stage
  StepSummary summary_;
};

}  // namespace

double StepSummary::scatter_s() const {
  double sum = idle_s;
  for (const auto& [id, times] : operations) sum += times.exposed_s;
  return step_s - sum;
}

StepSummary summary_of(const StepTrace& trace) {
  return Summary(trace).read();
}

std::string without_layer(const std::string& name) {
  if (!name.starts_with("layer")) return name;
  std::size_t end = 5;
  while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end]))) ++end;
  return "layer" + name.substr(end);
}

namespace {

/// One rank in one step.
StageSummary stage_of(const std::vector<const PassSpan*>& spans, const Extent& step) {
  Nanoseconds first_backward = step.end_ns, last_forward = step.begin_ns;
  for (const PassSpan* span : spans) {
    if (!is_pass(span->work)) continue;
    if (span->work == StageWork::kForward) {
      last_forward = std::max(last_forward, span->end_ns);
    } else {
      first_backward = std::min(first_backward, span->begin_ns);
    }
  }
  const Nanoseconds drains = std::max(first_backward, last_forward);
  StageSummary stage;
  const auto wait = [&](Nanoseconds begin, Nanoseconds end) {
    const auto part = [&](Nanoseconds from, Nanoseconds until) {
      return seconds_of(std::max<Nanoseconds>(0, std::min(end, until) - std::max(begin, from)));
    };
    stage.warm_up_s += part(step.begin_ns, first_backward);
    stage.steady_s += part(first_backward, drains);
    stage.drain_s += part(drains, step.end_ns);
  };
  Nanoseconds now = step.begin_ns;
  for (const PassSpan* span : spans) {
    // Of two passes that run as one block the second begins before the first has ended.
    if (!is_pass(span->work) || span->end_ns <= now) continue;
    wait(now, span->begin_ns);
    stage.busy_s += seconds_of(span->end_ns - std::max(now, span->begin_ns));
    now = span->end_ns;
  }
  wait(now, step.end_ns);
  return stage;
}

double median_of(const std::vector<StageSummary>& lanes, double StageSummary::*part) {
  std::vector<double> values;
  for (const StageSummary& lane : lanes) values.push_back(lane.*part);
  return median(values);
}

}  // namespace

double PipelineSummary::share(double StageSummary::*part) const {
  double sum = 0;
  for (const StageSummary& stage : stages) sum += stage.*part;
  const double whole = passes_s * static_cast<double>(stages.size());
  return whole > 0 ? sum / whole : 0;
}

double PipelineSummary::bubble() const {
  return share(&StageSummary::warm_up_s) + share(&StageSummary::steady_s) +
         share(&StageSummary::drain_s);
}

std::size_t PipelineSummary::limiting() const {
  constexpr double kRounding = 1e-9;  // of sums of spans
  std::size_t most = 0;
  for (std::size_t s = 1; s < stages.size(); ++s) {
    if (stages[s].busy_s > stages[most].busy_s * (1 + kRounding)) most = s;
  }
  return most;
}

std::optional<PipelineSummary> pipeline_of(const StepTrace& trace) {
  std::map<std::int32_t, Extent> steps;  // when their passes run, on all ranks
  for (const PassSpan& span : trace.timeline.passes) {
    if (is_pass(span.work)) steps[span.step].take_in(span);
  }
  std::map<std::int32_t, std::vector<StageSummary>> lanes;  // by stage
  for (const auto& [key, lane] : lanes_of(trace.timeline)) {
    if (!lane.passes.empty() && steps.contains(key.first))
      lanes[trace.timeline.stage_of(key.second)].push_back(stage_of(lane.passes, steps[key.first]));
  }
  PipelineSummary pipeline;
  std::vector<double> lengths;
  for (const auto& [number, step] : steps) lengths.push_back(step.seconds());
  pipeline.passes_s = median(lengths);
  for (const auto& [stage, of] : lanes) {
    if (stage != std::ssize(pipeline.stages)) return std::nullopt;
    StageSummary& summary = pipeline.stages.emplace_back();
    for (double StageSummary::*part : {&StageSummary::busy_s, &StageSummary::warm_up_s,
                                       &StageSummary::steady_s, &StageSummary::drain_s})
      summary.*part = median_of(of, part);
  }
  return pipeline.stages.empty() ? std::nullopt : std::optional(pipeline);
}

namespace {

double best_product_flops(const profiles::Profile& profile, std::int64_t dtype_bytes) {
  double best = 0;
  for (const profiles::MeasuredProduct& product : profile.measured_products) {
    if (product.dtype_bytes != dtype_bytes || product.seconds <= 0) continue;
    best = std::max(best, 2.0 * static_cast<double>(product.m) * static_cast<double>(product.n) *
                              static_cast<double>(product.k) / product.seconds);
  }
  return best;
}

}  // namespace

Utilisation utilisation_of(const Model& model, const Plan& plan, const UsedGpus& gpus) {
  Utilisation use;
  use.step_flops = model_flops(model, plan) * static_cast<double>(plan.gpus);
  if (gpus.count == 0) return use;
  use.memory_bytes = gpus.kind.memory_bytes;
  use.gpus = static_cast<double>(std::min(gpus.count, plan.gpus));
  const std::optional<Gpu> gpu = profiles::known_gpu(gpus.kind);
  if (!gpu) return use;
  const bool fp8 = plan.numerics.precision == Precision::kFp8;
  const bool bf16 = plan.param_dtype == DType::kBf16;
  const double peak = fp8    ? gpu->peak_fp8_flops
                      : bf16 ? gpu->peak_bf16_flops
                             : gpu->peak_fp32_flops;
  use.gpu = gpu->id;
  use.peak_flops = use.gpus * peak;
  use.basis = fmt::format("{:.0f} x {}, {:.0f} TFLOP/s dense {} each", use.gpus, gpus.kind.name,
                          peak / 1e12, fp8 ? name_of(Precision::kFp8) : name_of(plan.param_dtype));
  return use;
}

void count_measured_products(Utilisation& use, const profiles::Profile& profile, DType dtype) {
  if (use.gpu.empty() || profile.cluster.gpu.id != use.gpu) return;
  use.product_flops = use.gpus * best_product_flops(profile, bytes_of(dtype));
}

profiles::Profile gpu_profile(const UsedGpus& gpus, std::int64_t ranks) {
  const std::optional<Gpu> gpu = profiles::known_gpu(gpus.kind);
  if (!gpu) {
    throw Error(fmt::format("no profile is of {} with {} multiprocessors, expected --cluster",
                            gpus.kind.name, gpus.kind.multiprocessors));
  }
  std::vector<std::string> overrides;
  if (ranks > gpus.count) {
    overrides.push_back(fmt::format("cluster.devices_per_node={}", gpus.count));
  }
  return profiles::load_profile(profiles::load_gpu(gpu->id).usual_cluster, "native", overrides);
}

}  // namespace shardwright::sim
