// SPDX-License-Identifier: Apache-2.0
#include "sim/trace/import_own_trace.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "profiles/stack_file.h"
#include "sim/core/error.h"
#include "sim/core/hf_config.h"
#include "sim/core/parse_number.h"
#include "sim/strategies/lower.h"

namespace shardwright::sim {
namespace {

using profiles::Observation;
using profiles::ObservationSet;
using profiles::ObservationSource;

constexpr double kMicro = 1e-6;
// Less than any kernel takes: the executor has nothing to do there, because another operation did
// it (a reduction that adds onto its sum leaves no sum to be added).
constexpr double kNothingUs = 0.3;

std::string note(const ReadTrace& trace, const char* key) {
  const auto at = trace.notes.find(key);
  return at != trace.notes.end() ? at->second : std::string();
}

std::int64_t integer_note(const ReadTrace& trace, const char* key) {
  return parse_int64(note(trace, key)).value_or(0);
}

std::vector<double> step_times(const ReadTrace& trace) {
  std::vector<double> times;
  const auto list = nlohmann::json::parse(note(trace, "step_time_s"), nullptr, false);
  if (!list.is_array()) return times;
  for (const auto& value : list) {
    if (value.is_number() && value.get<double>() > 0) times.push_back(value.get<double>());
  }
  return times;
}

struct Interval {
  double begin, end;
};

/// Sorted, disjoint.
std::vector<Interval> united(std::vector<Interval> all) {
  std::sort(all.begin(), all.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> disjoint;
  for (const Interval& next : all) {
    if (!disjoint.empty() && next.begin <= disjoint.back().end) {
      disjoint.back().end = std::max(disjoint.back().end, next.end);
    } else {
      disjoint.push_back(next);
    }
  }
  return disjoint;
}

double overlap(const std::vector<Interval>& disjoint, const Interval& with) {
  auto at = std::lower_bound(disjoint.begin(), disjoint.end(), with.begin,
                             [](const Interval& i, double begin) { return i.end <= begin; });
  double sum = 0;
  for (; at != disjoint.end() && at->begin < with.end; ++at) {
    sum += std::min(at->end, with.end) - std::max(at->begin, with.begin);
  }
  return sum;
}

/// One rank in one step.
struct Lane {
  std::vector<const TraceSlice*> slices;  // of streams, by begin
  std::vector<const TraceSlice*> host;
};

class Importer {
 public:
  Importer(const ReadTrace& trace, const std::string& name, const Schedule& schedule,
           std::int64_t gpus_per_node)
      : trace_(trace), name_(name), schedule_(schedule), gpus_per_node_(gpus_per_node) {
    for_each_op(schedule_, [this](const OpInstance& at, const Op&) { instances_.push_back(at); });
    inline_ = note(trace, "streams") == "inline";
    copies_on_gpus_ = note(trace, "device") == "cuda" && note(trace, "transport") == "local";
    const std::int64_t devices = integer_note(trace, "devices");
    if (devices > 0) {
      sharers_ = static_cast<std::int32_t>((schedule_.world_ranks() - 1) / devices + 1);
    }
  }

  ObservationSet import() {
    read_source();
    sort_slices();
    for (auto& [key, lane] : lanes_) {
      const auto [step, rank] = key;
      read_lane(lane, rank, step);
    }
    read_steps();
    if (set_.observations.empty()) {
      throw Error(
          fmt::format("{}: no slice has an operation of a schedule, expected a trace of "
                      "run --trace",
                      name_));
    }
    if (foreign_.count > 0) set_.left_out.push_back(foreign_);
    if (empty_.count > 0) set_.left_out.push_back(empty_);
    if (no_link_.count > 0) set_.left_out.push_back(no_link_);
    return std::move(set_);
  }

 private:
  void read_source() {
    ObservationSource& source = set_.sources.emplace_back();
    source.file = name_;
    source.format = "shardwright";
    source.gpu = note(trace_, "device_name");
    source.sm_count = integer_note(trace_, "device_units");
    source.memory_bytes = integer_note(trace_, "device_memory_bytes");
    source.world_size = schedule_.world_ranks();
    source.software = note(trace_, "software");
    source.date = note(trace_, "date");
    source.step_s = step_times(trace_);
  }

  void sort_slices() {
    std::map<std::int64_t, std::int32_t> ranks;  // by process, in their order
    for (const auto& [process, title] : trace_.processes) {
      ranks.emplace(process, static_cast<std::int32_t>(ranks.size()));
    }
    for (const TraceSlice& slice : trace_.slices) {
      const auto rank = ranks.emplace(slice.process, static_cast<std::int32_t>(ranks.size()));
      const auto track = trace_.tracks.find({slice.process, slice.track});
      const bool host = track != trace_.tracks.end() && track->second == "host";
      if (slice.id < 0) {
        if (!host) {
          ++foreign_.count;
          foreign_.seconds += slice.duration_us * kMicro;
          set_.kernel_seconds += slice.duration_us * kMicro;
        }
        continue;
      }
      check_name(slice);
      Lane& lane = lanes_[{static_cast<std::int32_t>(slice.step), rank.first->second}];
      (host ? lane.host : lane.slices).push_back(&slice);
      if (!host) set_.kernel_seconds += slice.duration_us * kMicro;
    }
    for (auto& [key, lane] : lanes_) {
      const auto by_begin = [](const TraceSlice* a, const TraceSlice* b) {
        return a->begin_us < b->begin_us;
      };
      std::stable_sort(lane.slices.begin(), lane.slices.end(), by_begin);
    }
  }

  void check_name(const TraceSlice& slice) const {
    const auto count = static_cast<std::int64_t>(instances_.size());
    const std::string expected =
        slice.id < count ? describe(schedule_, instances_[static_cast<std::size_t>(slice.id)])
                         : fmt::format("none, because the step has {} operations", count);
    if (expected == slice.name) return;
    throw Error(
        fmt::format("{}: operation {} is {}, but of the plan in its notes it is {}; the "
                    "trace was written by another version",
                    name_, slice.id, slice.name, expected));
  }

  const Op& op_of(std::int64_t id) const {
    return schedule_.ops[instances_[static_cast<std::size_t>(id)].op];
  }

  /// Whether ranks wait for each other in it.
  bool waits(const Op& op) const {
    return schedule_.world_ranks() > 1 &&
           (op.work.kind == WorkKind::kCollective || op.kind == OpKind::kGradientNorm);
  }

  std::int64_t ranks_of(const Op& op) const {
    if (op.work.kind != WorkKind::kCollective) return schedule_.world_ranks();
    return schedule_.group(op.work.group).size;
  }

  void read_lane(const Lane& lane, std::int32_t rank, std::int32_t step) {
    std::vector<Interval> kernels, collectives;
    for (const TraceSlice* slice : lane.slices) {
      const Interval when{slice->begin_us, slice->begin_us + slice->duration_us};
      const bool collective = op_of(slice->id).work.kind == WorkKind::kCollective;
      (collective ? collectives : kernels).push_back(when);
    }
    kernels = united(std::move(kernels));
    collectives = united(std::move(collectives));
    struct Sum {
      double us = 0, contended_us = 0;
    };
    std::map<std::int64_t, Sum> sums;
    for (const TraceSlice* slice : lane.slices) {
      const bool collective = op_of(slice->id).work.kind == WorkKind::kCollective;
      Sum& sum = sums[slice->id];
      sum.us += slice->duration_us;
      sum.contended_us += overlap(collective ? kernels : collectives,
                                  {slice->begin_us, slice->begin_us + slice->duration_us});
    }
    for (const auto& [id, sum] : sums) {
      const Op& op = op_of(id);
      const bool works = op.work.kind != WorkKind::kNone && op.work.kind != WorkKind::kHost &&
                         (op.work.kind != WorkKind::kMemory || op.work.bytes > 0);
      if (!works || sum.us < kNothingUs) {
        ++empty_.count;
        empty_.seconds += sum.us * kMicro;
        continue;
      }
      if (copies_on_gpus_ && op.work.kind == WorkKind::kCollective && ranks_of(op) > 1) {
        ++no_link_.count;
        no_link_.seconds += sum.us * kMicro;
        continue;
      }
      Observation seen;
      seen.op = op.kind;
      seen.phase = op.phase;
      seen.work = op.work;
      seen.seconds = sum.us * kMicro;
      seen.contended = std::clamp(sum.contended_us / sum.us, 0.0, 1.0);
      seen.rank = rank;
      seen.step = step;
      seen.sharers = sharers_;
      if (waits(op)) {
        seen.ranks = ranks_of(op);
        seen.nodes = (seen.ranks - 1) / std::max<std::int64_t>(1, gpus_per_node_) + 1;
        seen.instance = instance_of(op, step, id, rank);
      }
      set_.observations.push_back(seen);
    }
    if (inline_) {
      read_gaps(lane, rank, step);
    } else {
      read_host(lane, rank, step);
    }
  }

  /// Numbers what the ranks of one group do together.
  std::int64_t instance_of(const Op& op, std::int32_t step, std::int64_t id, std::int32_t rank) {
    const std::int64_t group =
        op.work.kind == WorkKind::kCollective ? schedule_.group(op.work.group).number_of(rank) : 0;
    const auto fresh = static_cast<std::int64_t>(instances_seen_.size());
    return instances_seen_.emplace(std::tuple(step, id, group), fresh).first->second;
  }

  void launch(std::int64_t id, double us, int kernels, std::int32_t rank, std::int32_t step) {
    Observation seen;
    seen.op = op_of(id).kind;
    seen.phase = op_of(id).phase;
    seen.work.kind = WorkKind::kHost;
    seen.work.kernels = static_cast<std::uint16_t>(kernels);
    seen.seconds = us * kMicro;
    seen.rank = rank;
    seen.step = step;
    seen.sharers = sharers_;
    set_.observations.push_back(seen);
  }

  void read_gaps(const Lane& lane, std::int32_t rank, std::int32_t step) {
    double end_us = std::numeric_limits<double>::quiet_NaN();
    for (const TraceSlice* slice : lane.slices) {
      const double gap_us = slice->begin_us - end_us;
      if (gap_us >= 0) launch(slice->id, gap_us, 1, rank, step);
      end_us = slice->begin_us + slice->duration_us;
    }
  }

  void read_host(const Lane& lane, std::int32_t rank, std::int32_t step) {
    for (const TraceSlice* slice : lane.host) {
      const Op& op = op_of(slice->id);
      if (op.host_waits || op.work.kind == WorkKind::kHost || slice->duration_us <= 0) continue;
      launch(slice->id, slice->duration_us, op.work.kernels, rank, step);
    }
  }

  /// What the steps took beyond what their slowest rank's slices cover.
  void read_steps() {
    std::map<std::int32_t, double> covered_s;
    for (const auto& [key, lane] : lanes_) {
      double begin = std::numeric_limits<double>::max(), end = 0;
      for (const TraceSlice* slice : lane.slices) {
        begin = std::min(begin, slice->begin_us);
        end = std::max(end, slice->begin_us + slice->duration_us);
      }
      if (end <= begin) continue;
      double& most = covered_s[key.first];
      most = std::max(most, (end - begin) * kMicro);
    }
    const std::vector<double>& steps = set_.sources.front().step_s;
    if (covered_s.size() != steps.size()) return;
    std::size_t i = 0;
    for (const auto& [step, seconds] : covered_s) {
      Observation seen;
      seen.phase = Phase::kPrepare;
      seen.work.kind = WorkKind::kHost;
      seen.work.kernels = 0;
      seen.seconds = std::max(0.0, steps[i++] - seconds);
      seen.step = step;
      set_.observations.push_back(seen);
    }
  }

  const ReadTrace& trace_;
  const std::string& name_;
  const Schedule& schedule_;
  std::int64_t gpus_per_node_;
  std::vector<OpInstance> instances_;
  bool copies_on_gpus_ = false;  // in place of NCCL
  bool inline_ = false;
  std::int32_t sharers_ = 1;                                     // ranks of a device
  std::map<std::pair<std::int32_t, std::int32_t>, Lane> lanes_;  // by step and rank
  std::map<std::tuple<std::int32_t, std::int64_t, std::int64_t>, std::int64_t> instances_seen_;
  profiles::LeftOut foreign_{"slices that name no operation of the schedule", 0, 0};
  profiles::LeftOut no_link_{
      "collectives of ranks in one process, copies that say nothing of NCCL or a link", 0, 0};
  profiles::LeftOut empty_{"operations of no work or no duration", 0, 0};
  ObservationSet set_;
};

}  // namespace

Schedule lower_again(const TraceIdentity& identity, const std::string& name) {
  const Model model =
      parse_hf_config(identity.model_config, name + ", note model_config", identity.model);
  check_plan(identity.plan, model, identity.gpus_per_node);
  return lower(model, identity.plan, profiles::load_stack(identity.plan.stack).stack,
               identity.gpus_per_node);
}

ObservationSet own_trace_observations(const ReadTrace& trace, const std::string& name) {
  const std::optional<TraceIdentity> identity = identity_in(trace.notes, name);
  if (!identity) {
    throw Error(
        fmt::format("{}: has no plan in its notes, expected a trace that run --trace of this "
                    "version wrote",
                    name));
  }
  return Importer(trace, name, lower_again(*identity, name), identity->gpus_per_node).import();
}

ObservationSet timeline_observations(const Schedule& schedule, const Timeline& timeline,
                                     std::int64_t gpus_per_node, const TraceNotes& notes,
                                     const std::string& name) {
  ReadTrace trace;
  for (const auto& [key, value] : notes) trace.notes[key] = value;
  std::vector<OpInstance> instances;
  for_each_op(schedule, [&](const OpInstance& at, const Op&) { instances.push_back(at); });
  const auto add = [&](const Span& span, std::int64_t track) {
    const OpInstance& at = instances.at(static_cast<std::size_t>(span.id));
    TraceSlice& slice = trace.slices.emplace_back();
    slice.process = span.rank;
    slice.track = track;
    slice.name = describe(schedule, at);
    slice.begin_us = static_cast<double>(span.begin_ns) * 1e-3;
    slice.duration_us = static_cast<double>(span.end_ns - span.begin_ns) * 1e-3;
    slice.id = span.id;
    slice.step = span.step;
    trace.processes[span.rank];
  };
  for (const Span& span : timeline.spans) {
    trace.tracks[{span.rank, 0}] = "host";
    add(span, 1 + span.stream);
  }
  for (const Span& span : timeline.host) add(span, 0);
  return Importer(trace, name, schedule, gpus_per_node).import();
}

ObservationSet import_own_trace(const std::filesystem::path& file) {
  return own_trace_observations(read_chrome_trace(file), file.string());
}

bool is_own_trace(const ReadTrace& trace) {
  return trace.notes.contains("plan") && trace.notes.contains("model_config");
}

}  // namespace shardwright::sim
