// SPDX-License-Identifier: Apache-2.0
#include "sim/core/chrome_trace.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "sim/core/event_writer.h"
#include "sim/core/words.h"

namespace shardwright {
namespace {

constexpr int kHostTrack = 1;  // streams follow

/// A schedule with its operations by id.
struct ExpandedSchedule {
  explicit ExpandedSchedule(const Schedule& s) : schedule(s), uses(gather_uses(s)) {
    for_each_op(s, [this](const OpInstance& at, const Op&) { instances.push_back(at); });
  }
  const OpInstance* find(OpId id) const {
    if (id < 0 || id >= static_cast<OpId>(instances.size())) return nullptr;
    return &instances[static_cast<std::size_t>(id)];
  }
  const Op& op(const OpInstance& at) const { return schedule.ops[at.op]; }

  const Schedule& schedule;
  std::vector<OpInstance> instances;
  std::vector<GatherUse> uses;
};

/// One rank of one timeline.
class ProcessWriter {
 public:
  ProcessWriter(EventWriter& out, const ExpandedSchedule& expanded, const Timeline& timeline,
                int pid, std::int32_t rank)
      : out_(out), expanded_(expanded), timeline_(timeline), pid_(pid), rank_(rank) {}

  void write(const std::string& title, bool with_memory, std::int64_t& flow_id) {
    name_tracks(title);
    for (const Span& span : timeline_.host) {
      if (span.rank == rank_) slice(span, kHostTrack, true);
    }
    for (const Span& span : timeline_.spans) {
      if (span.rank == rank_) slice(span, track_of(span), false);
    }
    if (with_memory) memory_counters();
    bytes_in_flight();
    flows(flow_id);
  }

 private:
  static int track_of(const Span& span) { return kHostTrack + 1 + span.stream; }

  void name_tracks(const std::string& title) {
    out_.event(R"("ph":"M","pid":{},"name":"process_name","args":{{"name":{}}})", pid_,
               json_string(title));
    out_.event(R"("ph":"M","pid":{},"name":"process_sort_index","args":{{"sort_index":{}}})", pid_,
               pid_);
    struct Track {
      std::string name;
      std::string_view role;
    };
    std::vector<Track> tracks{{"host", "host"}};
    for (std::size_t i = 0; i < timeline_.streams.size(); ++i) {
      const std::vector<Stream>& planned = expanded_.schedule.streams;
      tracks.push_back({timeline_.streams[i],
                        name_of(i < planned.size() ? planned[i].role : StreamRole::kSide)});
    }
    for (std::size_t i = 0; i < tracks.size(); ++i) {
      const std::size_t tid = static_cast<std::size_t>(kHostTrack) + i;
      out_.event(
          R"("ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{},"role":"{}"}})",
          pid_, tid, json_string(tracks[i].name), tracks[i].role);
      out_.event(
          R"("ph":"M","pid":{},"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}})",
          pid_, tid, tid);
    }
  }

  void slice(const Span& span, int track, bool host) {
    const OpInstance* at = expanded_.find(span.id);
    const bool named =
        span.name >= 0 && static_cast<std::size_t>(span.name) < timeline_.names.size();
    std::string name = named ? timeline_.names[static_cast<std::size_t>(span.name)] : "unnamed";
    std::string args;
    if (at != nullptr && named && host) {
      // A call within the issue of an operation: it has no id, so that nobody takes it for the
      // issue.
      args = fmt::format(R"("op":{})", at->id);
    } else if (at != nullptr) {
      args = op_args(*at, expanded_.op(*at), host);
      if (named) args += fmt::format(R"(,"kernel":{})", json_string(name));
      name = describe(expanded_.schedule, *at);
    }
    if (span.step != 0) args += fmt::format(R"({}"step":{})", args.empty() ? "" : ",", span.step);
    out_.event(R"("ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"cat":"{}","args":{{{}}})",
               pid_, track, microseconds(span.begin_ns), microseconds(span.end_ns - span.begin_ns),
               json_string(name), at != nullptr ? name_of(expanded_.op(*at).phase) : "other", args);
  }

  std::string op_args(const OpInstance& at, const Op& op, bool host) const {
    std::string text = fmt::format(
        R"("id":{},"unit":"{}","phase":"{}","kind":"{}","micro_step":{})", at.id,
        unit_name(expanded_.schedule, at.unit), name_of(op.phase), name_of(op.kind), at.micro_step);
    if (host) return text;
    const Work& work = op.work;
    if (work.kind == WorkKind::kMemory || work.kind == WorkKind::kCollective) {
      text += fmt::format(R"(,"bytes":{})", work.bytes);
    }
    if (work.kind == WorkKind::kGemm) {
      text += fmt::format(R"(,"m":{},"n":{},"k":{})", work.m, work.n, work.k);
    }
    return text;
  }

  void counter(Nanoseconds at, const char* name, Bytes bytes) {
    out_.event(R"("ph":"C","pid":{},"ts":{},"name":"{}","args":{{"bytes":{}}})", pid_,
               microseconds(at), name, bytes);
  }

  void memory_counters() {
    Bytes allocated = -1, reserved = -1;
    for (const MemorySample& sample : timeline_.memory) {
      if (sample.allocated_bytes != allocated) {
        counter(sample.at_ns, "memory allocated", allocated = sample.allocated_bytes);
      }
      if (sample.reserved_bytes != reserved) {
        counter(sample.at_ns, "memory reserved", reserved = sample.reserved_bytes);
      }
    }
  }

  void bytes_in_flight() {
    std::map<Nanoseconds, Bytes> changes;
    for (const Span& span : timeline_.spans) {
      const OpInstance* at = span.rank == rank_ ? expanded_.find(span.id) : nullptr;
      if (at == nullptr || !is_collective(expanded_.op(*at).kind)) continue;
      changes[span.begin_ns] += expanded_.op(*at).work.bytes;
      changes[span.end_ns] -= expanded_.op(*at).work.bytes;
    }
    Bytes in_flight = 0;
    for (const auto& [at, change] : changes) {
      if (change != 0) counter(at, "bytes in flight", in_flight += change);
    }
  }

  void flows(std::int64_t& flow_id) {
    std::map<std::pair<std::int32_t, OpId>, const Span*> by_id;
    for (const Span& span : timeline_.spans) {
      if (span.rank == rank_ && span.id >= 0) by_id.emplace(std::pair(span.step, span.id), &span);
    }
    std::set<std::int32_t> steps;
    for (const auto& [key, span] : by_id) steps.insert(key.first);
    for (const std::int32_t step : steps) {
      for (const GatherUse& use : expanded_.uses) {
        const auto from = by_id.find({step, use.gather});
        const auto to = by_id.find({step, use.use});
        if (from == by_id.end() || to == by_id.end()) continue;
        if (to->second->begin_ns < from->second->begin_ns) continue;  // a measured clock may err
        flow_end('s', *from->second, flow_id, "");
        flow_end('f', *to->second, flow_id, R"(,"bp":"e")");
        ++flow_id;
      }
    }
  }

  void flow_end(char phase, const Span& span, std::int64_t id, const char* more) {
    out_.event(R"("ph":"{}","pid":{},"tid":{},"ts":{},"id":{},"name":"gather","cat":"flow"{})",
               phase, pid_, track_of(span), microseconds(span.begin_ns), id, more);
  }

  EventWriter& out_;
  const ExpandedSchedule& expanded_;
  const Timeline& timeline_;
  int pid_;
  std::int32_t rank_;
};

bool runs_a_kernel(const Op& op) {
  return op.work.kind == WorkKind::kGemm || op.work.kind == WorkKind::kAttention ||
         op.work.kind == WorkKind::kMemory;
}

}  // namespace

std::string_view name_of(StreamRole role) {
  static constexpr std::array<std::string_view, 3> kNames = {"compute", "communication", "side"};
  static_assert(kNames.size() == static_cast<std::size_t>(StreamRole::kSide) + 1);
  return name_in(kNames, role);
}

std::vector<GatherUse> gather_uses(const Schedule& schedule) {
  const auto units = schedule.units();
  // The gather that recorded each event last, by (name, unit); -1: none, or it has been used.
  std::vector<OpId> recorded(schedule.event_names.size() * static_cast<std::size_t>(units), -1);
  const auto slot = [&](EventRef event, std::int32_t unit) -> OpId* {
    const std::int32_t of = unit + event.offset;
    if (!event || of < 0 || of >= units) return nullptr;
    return &recorded[event.name * static_cast<std::size_t>(units) + static_cast<std::size_t>(of)];
  };
  // Gathers that a stream has waited for without having run a kernel since.
  std::vector<std::vector<OpId>> awaited(schedule.streams.size());
  // The last gather of each stream and its unit: unpacking on the same stream needs no event.
  std::vector<std::pair<OpId, std::int32_t>> last(schedule.streams.size(), {-1, 0});
  std::set<OpId> used;
  std::vector<GatherUse> uses;
  for_each_op(schedule, [&](const OpInstance& at, const Op& op) {
    for (const EventRef& wait : op.waits) {
      OpId* gather = slot(wait, at.unit);
      if (gather == nullptr || *gather < 0 || is_collective(op.kind) || op.host_waits) continue;
      awaited[op.stream].push_back(*gather);
      *gather = -1;
    }
    const std::int32_t target = at.unit + op.target;
    if (op.kind == OpKind::kCopyOut && last[op.stream].first >= 0 &&
        last[op.stream].second == target) {
      awaited[op.stream].push_back(last[op.stream].first);
    }
    if (runs_a_kernel(op)) {
      for (const OpId gather : awaited[op.stream]) {
        if (used.insert(gather).second) uses.push_back({gather, at.id});
      }
      awaited[op.stream].clear();
    }
    if (OpId* event = slot(op.record, at.unit)) {
      *event = op.kind == OpKind::kAllGather ? at.id : -1;
    }
    if (op.kind == OpKind::kAllGather) last[op.stream] = {at.id, target};
  });
  return uses;
}

void write_chrome_trace(const std::filesystem::path& path,
                        std::span<const TracedTimeline> timelines,
                        const std::vector<std::pair<std::string, std::string>>& notes) {
  EventWriter out(path);
  int pid = 0;
  std::int64_t flow_id = 1;
  for (const TracedTimeline& traced : timelines) {
    const ExpandedSchedule expanded(*traced.schedule);
    std::set<std::int32_t> ranks;
    for (const Span& span : traced.timeline->spans) ranks.insert(span.rank);
    if (ranks.empty()) ranks.insert(0);
    for (const std::int32_t rank : ranks) {
      const std::string title =
          ranks.size() > 1 ? fmt::format("{}, rank {}", traced.title, rank) : traced.title;
      ProcessWriter(out, expanded, *traced.timeline, ++pid, rank)
          .write(title, rank == *ranks.begin(), flow_id);
    }
  }
  out.finish(notes);
}

}  // namespace shardwright
