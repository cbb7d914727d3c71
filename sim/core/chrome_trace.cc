// SPDX-License-Identifier: Apache-2.0
#include "sim/core/chrome_trace.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/words.h"
#include "sim/core/plan_json.h"

namespace shardwright {

namespace {

constexpr int kHostTrack = 1;  // streams follow, then what the stage does
constexpr int kLanes = 100;    // apart: of a stream whose spans may overlap

/// Of a unit's own collective they stand apart.
Bytes bytes_moved(const Op& op) {
  return op.collective ? static_cast<Bytes>(op.collective.bytes) : op.work.bytes;
}

/// A schedule with its operations by id.
struct ExpandedSchedule {
  explicit ExpandedSchedule(const Schedule& s) : schedule(s), uses(gather_uses(s)) {
    for_each_op(s, [this](const OpInstance& at, const Op&) { instances.push_back(at); });
  }
  const OpInstance* find(OpId id) const {
    const OpId at = id - schedule.first_id;
    if (id < 0 || at < 0 || at >= std::ssize(instances)) return nullptr;
    return &instances[static_cast<std::size_t>(at)];
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
      : out_(out), expanded_(expanded), timeline_(timeline), pid_(pid), rank_(rank) {
    const auto stage = timeline.stages.find(rank);
    if (stage != timeline.stages.end()) stage_ = &stage->second;
  }

  void write(const std::string& title, bool with_memory, std::int64_t& flow_id) {
    name_tracks(title);
    for (const Span& span : timeline_.host) {
      if (span.rank == rank_) slice(span, kHostTrack, true);
    }
    for (const Span& span : timeline_.spans) {
      if (span.rank == rank_) slice(span, lane_of(span), false);
    }
    for (const PassSpan& span : timeline_.passes) {
      if (span.rank == rank_) pass(span);
    }
    if (with_memory) memory_counters();
    bytes_in_flight();
    flows(flow_id);
  }

 private:
  static int track_of(const Span& span) { return kHostTrack + 1 + span.stream; }

  /// Slices of one track may not overlap in part, as messages on their way do: each takes the first
  /// lane that is free.
  int lane_of(const Span& span) {
    const OpInstance* at = expanded_.find(span.id);
    const int track = track_of(span);
    if (at == nullptr || expanded_.op(*at).kind != OpKind::kReceive) return track;
    std::size_t lane = 0;
    while (lane < busy_.size() && busy_[lane] > span.begin_ns) ++lane;
    if (lane == busy_.size()) {
      busy_.push_back(0);
      const Stream& stream = expanded_.schedule.streams[span.stream];
      if (lane > 0) {
        name_track(track + kLanes * static_cast<int>(lane), stream.name, name_of(stream.role),
                   track);
      }
    }
    busy_[lane] = span.end_ns;
    return track + kLanes * static_cast<int>(lane);
  }

  int pass_track() const { return kHostTrack + 1 + static_cast<int>(timeline_.streams.size()); }

  void pass(const PassSpan& span) {
    std::string args;
    if (is_pass(span.work)) {
      args = fmt::format(R"("stage":{},"chunk":{},"action":"{}","micro_batch":{})", stage_->stage,
                         span.chunk, letter_of(static_cast<PassKind>(span.work)), span.micro_batch);
    }
    if (span.step != 0) args += fmt::format(R"({}"step":{})", args.empty() ? "" : ",", span.step);
    out_.event(R"("ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"cat":"{}","args":{{{}}})",
               pid_, pass_track(), microseconds(span.begin_ns),
               microseconds(span.end_ns - span.begin_ns),
               json_string(name_of(span, stage_->chunks > 1)), name_of(span.work), args);
  }

  void name_track(int tid, const std::string& name, std::string_view role, int order) {
    out_.event(
        R"("ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{},"role":"{}"}})", pid_,
        tid, json_string(name), role);
    out_.event(
        R"("ph":"M","pid":{},"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}})", pid_,
        tid, order);
  }

  void name_process(const std::string& title) {
    if (stage_ == nullptr) {
      out_.event(R"("ph":"M","pid":{},"name":"process_name","args":{{"name":{}}})", pid_,
                 json_string(title));
      return;
    }
    const std::string name = fmt::format("{}: stage {} of {} ({})", title, stage_->stage,
                                         timeline_.stage_count(), stage_->content);
    out_.event(
        R"("ph":"M","pid":{},"name":"process_name","args":{{"name":{},"timeline":{},"rank":{},"stage":{},"chunks":{},"content":{}}})",
        pid_, json_string(name), json_string(title), rank_, stage_->stage, stage_->chunks,
        json_string(stage_->content));
  }

  void name_tracks(const std::string& title) {
    name_process(title);
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
    std::vector<bool> used(tracks.size(), stage_ == nullptr);
    used[0] = used[0] || !timeline_.host.empty();
    for (const Span& span : timeline_.spans) used[1 + span.stream] = true;
    for (std::size_t i = 0; i < tracks.size(); ++i) {
      if (!used[i]) continue;
      const int tid = kHostTrack + static_cast<int>(i);
      name_track(tid, tracks[i].name, tracks[i].role, tid);
    }
    if (stage_ != nullptr) name_track(pass_track(), "stage", "stage", 0);
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
    if (const std::optional<Action>& pass = expanded_.schedule.sections[at.section].pass; pass) {
      text += fmt::format(R"(,"stage":{},"chunk":{},"action":"{}")", stage_->stage, pass->chunk,
                          letter_of(pass->kind));
    }
    if (host) return text;
    const Work& work = op.work;
    if (communicates(op)) text += fmt::format(R"(,"group":"{}")", name_of(op.work.group));
    if (op.peer >= 0) text += fmt::format(R"(,"peer":{},"channel":{})", op.peer, op.channel);
    if (work.kind == WorkKind::kMemory || work.kind == WorkKind::kCollective ||
        work.kind == WorkKind::kTransfer) {
      text += fmt::format(R"(,"bytes":{})", bytes_moved(op));
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
      changes[span.begin_ns] += bytes_moved(expanded_.op(*at));
      changes[span.end_ns] -= bytes_moved(expanded_.op(*at));
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
  const StageOfRank* stage_ = nullptr;
  std::vector<Nanoseconds> busy_;  // lanes of messages
};

/// From pass to pass, over processes.
void write_hand_overs(EventWriter& out, const Timeline& timeline,
                      const std::map<std::int32_t, int>& processes, std::int64_t& flow_id) {
  const int track = kHostTrack + 1 + static_cast<int>(timeline.streams.size());
  for (const auto& [from, to] : timeline.hand_overs) {
    const PassSpan &a = timeline.passes[from], &b = timeline.passes[to];
    const char* name = a.work == StageWork::kForward ? "activations" : "gradients";
    out.event(R"("ph":"s","pid":{},"tid":{},"ts":{},"id":{},"name":"{}","cat":"micro-batch")",
              processes.at(a.rank), track, microseconds(a.end_ns - 1), flow_id, name);
    out.event(
        R"("ph":"f","bp":"e","pid":{},"tid":{},"ts":{},"id":{},"name":"{}","cat":"micro-batch")",
        processes.at(b.rank), track, microseconds(b.begin_ns), flow_id++, name);
  }
}

bool runs_a_kernel(const Op& op) {
  return op.work.kind == WorkKind::kGemm || op.work.kind == WorkKind::kAttention ||
         op.work.kind == WorkKind::kMemory;
}

}  // namespace

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
    std::set<std::int32_t> ranks;
    for (const Span& span : traced.timeline->spans) ranks.insert(span.rank);
    if (ranks.empty()) ranks.insert(0);
    std::map<std::int32_t, ExpandedSchedule> stages;
    std::map<std::int32_t, int> processes;
    for (const std::int32_t rank : ranks) {
      const std::int32_t stage = traced.timeline->stage_of(rank);
      const ExpandedSchedule& expanded =
          stages.try_emplace(stage, traced.schedule[stage]).first->second;
      const bool several = ranks.size() > 1 && traced.timeline->stages.empty();
      const std::string title =
          several ? fmt::format("{}, rank {}", traced.title, rank) : traced.title;
      processes[rank] = ++pid;
      ProcessWriter(out, expanded, *traced.timeline, pid, rank)
          .write(title, rank == *ranks.begin(), flow_id);
    }
    write_hand_overs(out, *traced.timeline, processes, flow_id);
  }
  out.finish(notes);
}

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kModel = "model";
constexpr const char* kConfig = "model_config";
constexpr const char* kPlan = "plan";
constexpr const char* kPerNode = "gpus_per_node";

std::string note(const std::map<std::string, std::string>& notes, const char* key) {
  const auto at = notes.find(key);
  return at != notes.end() ? at->second : std::string();
}

/// Members of two objects that differ: "WHAT is A, not B".
void compare_members(const Json& mine, const Json& other, const std::string& whose,
                     std::vector<std::string>& out) {
  std::set<std::string> keys;
  for (const Json* side : {&mine, &other}) {
    for (const auto& [key, value] : side->items()) keys.insert(key);
  }
  const auto text = [](const Json& object, const std::string& key) {
    return object.contains(key) ? object[key].dump() : std::string("not given");
  };
  for (const std::string& key : keys) {
    if (key.starts_with('_')) continue;
    const std::string left = text(mine, key), right = text(other, key);
    if (left != right) out.push_back(fmt::format("{}{} is {}, not {}", whose, key, left, right));
  }
}

}  // namespace

TraceNotes notes_of(const TraceIdentity& identity) {
  return {{kModel, identity.model},
          {kConfig, identity.model_config},
          {kPlan, plan_text(identity.plan)},
          {"stack", identity.plan.stack},
          {kPerNode, fmt::format("{}", identity.gpus_per_node)}};
}

TraceNotes notes_of(const TraceOrigin& origin) {
  return {{"device", origin.device},
          {"device_name", origin.device_name},
          {"device_units", fmt::format("{}", origin.units)},
          {"device_memory_bytes", fmt::format("{}", origin.memory_bytes)},
          {"devices", fmt::format("{}", origin.devices)},
          {"streams", origin.streams},
          {"software", origin.software},
          {"date", origin.date},
          {"transport", origin.transport},
          {"step_time_s", nlohmann::json(origin.step_s).dump()}};
}

TraceOrigin origin_in(const std::map<std::string, std::string>& notes) {
  const auto number = [&](const char* key) { return parse_int64(note(notes, key)).value_or(0); };
  TraceOrigin origin;
  origin.device = note(notes, "device");
  origin.device_name = note(notes, "device_name");
  origin.units = number("device_units");
  origin.memory_bytes = number("device_memory_bytes");
  origin.devices = number("devices");
  origin.streams = note(notes, "streams");
  origin.software = note(notes, "software");
  origin.date = note(notes, "date");
  origin.transport = note(notes, "transport");
  const auto steps = parse_json(note(notes, "step_time_s"), false);
  if (!steps.is_array()) return origin;
  for (const auto& step : steps) {
    if (step.is_number() && step.get<double>() > 0) origin.step_s.push_back(step.get<double>());
  }
  return origin;
}

std::optional<TraceIdentity> identity_in(const std::map<std::string, std::string>& notes,
                                         const std::string& name) {
  if (!notes.contains(kPlan) || !notes.contains(kConfig)) return std::nullopt;
  TraceIdentity identity;
  identity.model = note(notes, kModel);
  identity.model_config = note(notes, kConfig);
  const JsonFile plan = JsonFile::parse(note(notes, kPlan), name + ", note plan");
  identity.plan = plan_from_json(plan.root());
  const std::optional<std::int64_t> per_node = parse_int64(note(notes, kPerNode));
  if (!per_node || *per_node < 1) {
    throw Error(fmt::format("{}: the note gpus_per_node is '{}', expected a whole number above 0",
                            name, note(notes, kPerNode)));
  }
  identity.gpus_per_node = *per_node;
  return identity;
}

std::vector<std::string> differences(const TraceIdentity& identity, const TraceIdentity& other) {
  std::vector<std::string> found;
  const Json mine = parse_ordered_json(identity.model_config, false);
  const Json theirs = parse_ordered_json(other.model_config, false);
  if (mine.is_object() && theirs.is_object()) {
    compare_members(mine, theirs, "the model's ", found);
  } else if (identity.model_config != other.model_config) {
    found.push_back(fmt::format("the model is {}, not {}", identity.model, other.model));
  }
  compare_members(plan_to_json(identity.plan), plan_to_json(other.plan), "the plan's ", found);
  return found;
}

std::string json_string(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string microseconds(Nanoseconds ns) {
  const Nanoseconds size = ns < 0 ? -ns : ns;
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", size / 1000, size % 1000);
}

}  // namespace shardwright
