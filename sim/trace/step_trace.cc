// SPDX-License-Identifier: Apache-2.0
#include "sim/trace/step_trace.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <istream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <streambuf>
#include <tuple>
#include <utility>

#include "profiles/import/byte_stream.h"
#include "profiles/stack_file.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/chrome_trace.h"
#include "sim/core/hf/config.h"
#include "sim/pipeline/step_program.h"
#include "sim/trace/observations.h"

namespace shardwright::sim {

namespace {

using nlohmann::json;

constexpr const char* kHostTrack = "host";
constexpr const char* kStageTrack = "stage";

std::map<SpanKey, Nanoseconds> ready_operations(const StepTrace& trace) {
  std::map<SpanKey, Nanoseconds> ready = sent_messages(trace);
  if (trace.origin.device.empty()) return ready;  // a prediction's ranks come together
  const auto is_norm = [&](OpId id) {
    return trace.operations.at(id).kind == OpKind::kGradientNorm;
  };
  const std::map<LaneKey, Nanoseconds> meetings = norm_meetings(trace.timeline, is_norm);
  for (const Span& span : trace.timeline.spans) {
    if (is_norm(span.id))
      ready[{span.id, span.rank, span.step}] = meetings.at({span.step, span.rank});
  }
  return ready;
}

std::int32_t layer_of(std::string_view unit) {
  constexpr std::string_view kLayer = "layer";
  if (!unit.starts_with(kLayer)) return -1;
  const std::optional<std::int64_t> number = parse_int64(unit.substr(kLayer.size()));
  return number && *number >= 0 && *number < (1 << 20) ? static_cast<std::int32_t>(*number) : -1;
}

bool is_product(OpKind kind) {
  return kind == OpKind::kInputGradient || kind == OpKind::kWeightGradient ||
         name_of(kind).ends_with("_projection");
}

/// A process is one rank of a timeline: "measured, rank 3" is rank 3 of "measured". Of a pipeline
/// it says which stage's.
struct Process {
  std::string timeline;
  std::optional<std::int32_t> rank;
  std::optional<StageOfRank> stage = std::nullopt;
};

constexpr std::int64_t kMostRanks = 1 << 24;

/// Nothing of numbers that no step has.
std::optional<Process> stage_process(const json& args) {
  const std::int64_t rank = integer_of(args, "rank", -1), stage = integer_of(args, "stage", -1);
  const std::int64_t chunks = integer_of(args, "chunks", 1);
  for (const std::int64_t number : {rank, stage, chunks}) {
    if (number < 0 || number >= kMostRanks) return std::nullopt;
  }
  return Process{text_of(args, "timeline"), static_cast<std::int32_t>(rank),
                 StageOfRank{static_cast<std::int32_t>(stage), static_cast<std::int32_t>(chunks),
                             text_of(args, "content")}};
}

Process process_of(const std::string& title) {
  constexpr std::string_view kRank = ", rank ";
  const std::size_t at = title.rfind(kRank);
  if (at == std::string::npos) return {title, std::nullopt};
  const auto rank = parse_int64(std::string_view(title).substr(at + kRank.size()));
  if (!rank || *rank < 0 || *rank >= kMostRanks) return {title.substr(0, at), std::nullopt};
  return {title.substr(0, at), static_cast<std::int32_t>(*rank)};
}

class Reader {
 public:
  explicit Reader(const std::filesystem::path& file) { trace_.name = file.string(); }

  StepTrace read(const std::filesystem::path& file) {
    const auto notes = for_each_event(file, [this](json& event) { take(event); });
    trace_.identity = identity_in(notes, trace_.name);
    trace_.origin = origin_in(notes);
    choose_timeline();
    for (auto& [key, track] : tracks_) {
      if (ranks_.contains(key.first) && !track.host() && track.role != kStageTrack)
        track.stream = stream_of(track, key.second);
    }
    for (const Slice& slice : slices_) place(slice);
    for (const StageSlice& slice : stage_slices_) place(slice);
    for (const Counter& counter : counters_) sample(counter);
    infer_roles();
    std::stable_sort(trace_.timeline.spans.begin(), trace_.timeline.spans.end(),
                     [](const Span& a, const Span& b) {
                       return std::pair(a.rank, a.begin_ns) < std::pair(b.rank, b.begin_ns);
                     });
    trace_.ready_ns = ready_operations(trace_);
    return std::move(trace_);
  }

 private:
  struct Slice {
    std::int64_t process, track;
    OpId id;
    std::int32_t step;
    Nanoseconds begin_ns, end_ns;
  };
  struct StageSlice {
    std::int64_t process, track;
    PassSpan span;
  };
  struct Counter {
    std::int64_t process;
    Nanoseconds at_ns;
    bool allocated;  // else reserved
    Bytes bytes;
  };
  struct Track {
    std::string name;
    std::string role;  // empty: written before there were roles
    std::optional<std::uint8_t> stream;
    bool host() const { return role.empty() ? name == kHostTrack : role == kHostTrack; }
  };

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("{}: {}", trace_.name, what));
  }

  void take(const json& event) {
    const std::string type = text_of(event, "ph");
    if (type != "X" && type != "M" && type != "C") return;
    if (++events_ > kMostSlices) fail(fmt::format("has more than {} slices", kMostSlices));
    const std::int64_t process = integer_of(event, "pid", 0);
    const json none = json::object();
    const auto found = event.find("args");
    const json& args = found != event.end() && found->is_object() ? *found : none;
    if (type == "X") return take_slice(event, args, process);
    const std::string name = text_of(event, "name");
    if (type == "C") {
      if (name != "memory allocated" && name != "memory reserved") return;
      counters_.push_back({process, nanoseconds(event, "ts"), name == "memory allocated",
                           std::max<Bytes>(0, integer_of(args, "bytes", 0))});
    } else if (name == "process_name") {
      const bool staged = args.contains("stage");
      const std::optional<Process> stage = staged ? stage_process(args) : std::nullopt;
      if (staged && !stage) fail("a process is of no rank or stage that a step can have");
      processes_[process] = stage ? *stage : process_of(text_of(args, "name"));
    } else if (name == "thread_name") {
      tracks_[{process, integer_of(event, "tid", 0)}] = {text_of(args, "name"),
                                                         text_of(args, "role"), std::nullopt};
    }
  }

  std::int32_t step_of(const json& args) const {
    const std::int64_t step = integer_of(args, "step", 0);
    if (step < 0 || step > std::numeric_limits<std::int32_t>::max()) {
      fail(fmt::format("a slice is of step {}, expected 0 to 2147483647", step));
    }
    return static_cast<std::int32_t>(step);
  }

  /// What a stage does; where nothing of that kind is known it may be a slice of anything.
  bool take_pass(const json& event, const json& args, std::int64_t process) {
    if (args.contains("id")) return false;
    const auto work = from_word<StageWork>(text_of(event, "cat"));
    if (!work) return false;
    PassSpan span;
    span.work = *work;
    span.step = step_of(args);
    if (is_pass(*work)) {
      const std::int64_t chunk = integer_of(args, "chunk", 0);
      const std::int64_t micro_batch = integer_of(args, "micro_batch", 0);
      if (std::min(chunk, micro_batch) < 0 || std::max(chunk, micro_batch) >= kMostRanks)
        fail("a pass is of a chunk or micro-batch that no step has");
      span.chunk = static_cast<std::int32_t>(chunk);
      span.micro_batch = static_cast<std::int32_t>(micro_batch);
    }
    span.begin_ns = nanoseconds(event, "ts");
    span.end_ns = span.begin_ns + duration(event);
    stage_slices_.push_back({process, integer_of(event, "tid", 0), span});
    return true;
  }

  void take_slice(const json& event, const json& args, std::int64_t process) {
    if (take_pass(event, args, process)) return;
    Slice& slice = slices_.emplace_back();
    slice.process = process;
    slice.track = integer_of(event, "tid", 0);
    slice.id = integer_of(args, "id", -1);
    slice.step = step_of(args);
    slice.begin_ns = nanoseconds(event, "ts");
    slice.end_ns = slice.begin_ns + duration(event);
    if (slice.id < 0 || !args.contains("kind")) {
      slice.id = -1;
    } else {
      processes_with_operations_.insert(process);
    }
    if (slice.id >= 0) know_operation(process, slice.id, text_of(event, "name"), args);
  }

  /// Sums and differences of what it returns do not overflow.
  Nanoseconds nanoseconds(const json& event, const char* key) const {
    constexpr double kMost = 2e15;  // microseconds: 63 years
    const double value = number_of(event, key, 0);
    if (std::abs(value) <= kMost) return std::llround(value * 1e3);
    fail(fmt::format("a slice's {} is {:g}, expected microseconds of at most {:g}", key, value,
                     kMost));
  }

  Nanoseconds duration(const json& event) const {
    const Nanoseconds lasts = nanoseconds(event, "dur");
    if (lasts < 0) fail(fmt::format("a slice's dur is {} ns, expected at least 0", lasts));
    return lasts;
  }

  /// Timelines of one file may be of different plans, so that ids count within one.
  void know_operation(std::int64_t process, OpId id, std::string name, const json& args) {
    const auto [at, fresh] = operations_[process].try_emplace(id);
    TracedOperation& operation = at->second;
    // The host's slices, which may come first, do not say.
    if (!operation.group) know_group(operation, args);
    if (!fresh) {
      if (operation.name != name) {
        fail(fmt::format("operation {} is both {} and {}", id, operation.name, name));
      }
      return;
    }
    const auto read = [&]<class Enum>(const char* key, Enum& into) {
      const std::string word = text_of(args, key);
      const std::optional<Enum> value = from_word<Enum>(word);
      if (!value) {
        fail(fmt::format("the {} of operation {} ({}) is '{}', which no version of a step has", key,
                         id, name, word));
      }
      into = *value;
    };
    read("kind", operation.kind);
    read("phase", operation.phase);
    operation.layer = layer_of(text_of(args, "unit"));
    operation.name = std::move(name);
  }

  static void know_group(TracedOperation& operation, const json& args) {
    const std::string word = text_of(args, "group");
    if (word.empty()) return;
    for (std::size_t g = 0; g < kCommGroups; ++g) {
      const auto group = static_cast<CommGroup>(g);
      if (name_of(group) == word) operation.group = group;
    }
    const auto number = [&](const char* key) {
      const std::int64_t value = integer_of(args, key, -1);
      return static_cast<std::int32_t>(value >= 0 && value < kMostRanks ? value : -1);
    };
    operation.peer = number("peer");
    operation.channel = number("channel");
  }

  /// The timeline of the first process that has operations, and the ranks of its processes.
  void choose_timeline() {
    if (processes_with_operations_.empty()) {
      fail(
          "no slice has an operation of a schedule, expected a trace of predict --trace or "
          "run --trace");
    }
    for (const Slice& slice : slices_) processes_.try_emplace(slice.process);
    const std::string timeline = processes_[*processes_with_operations_.begin()].timeline;
    trace_.timeline.source = timeline;
    std::set<std::string> others;
    std::set<std::int32_t> taken;
    for (const auto& [number, process] : processes_) {
      if (process.timeline != timeline) {
        if (processes_with_operations_.contains(number)) others.insert(process.timeline);
        continue;
      }
      const std::int32_t rank = process.rank.value_or(static_cast<std::int32_t>(ranks_.size()));
      if (!taken.insert(rank).second) {
        fail(fmt::format("two processes are rank {} of '{}'", rank, timeline));
      }
      ranks_[number] = rank;
      if (process.stage) trace_.timeline.stages[rank] = *process.stage;
    }
    for (const std::string& other : others) {
      trace_.left_out.push_back(
          fmt::format("{}: compared is '{}', not '{}'", trace_.name, timeline, other));
    }
    for (const auto& [number, rank] : ranks_) {
      for (auto& [id, operation] : operations_[number]) {
        operation.stage = trace_.timeline.stage_of(rank);
        const auto [at, fresh] = trace_.operations.emplace(id, operation);
        if (!fresh && at->second.name != operation.name) {
          fail(fmt::format("operation {} is both {} and {}", id, at->second.name, operation.name));
        }
        if (at->second.stage != operation.stage) {
          fail(fmt::format("operation {} is of stages {} and {}", id, at->second.stage,
                           operation.stage));
        }
      }
    }
  }

  void place(const Slice& slice) {
    const auto rank = ranks_.find(slice.process);
    if (rank == ranks_.end()) return;
    Track& track = tracks_[{slice.process, slice.track}];
    if (slice.id < 0) {
      if (track.host()) return;
      ++trace_.foreign;
      trace_.foreign_s += static_cast<double>(slice.end_ns - slice.begin_ns) * 1e-9;
      return;
    }
    Span span;
    span.id = slice.id;
    span.rank = rank->second;
    span.step = slice.step;
    span.begin_ns = slice.begin_ns;
    span.end_ns = slice.end_ns;
    trace_.timeline.step_ns = std::max(trace_.timeline.step_ns, span.end_ns);
    if (track.host()) {
      trace_.timeline.host.push_back(span);
      return;
    }
    if (!track.stream) track.stream = stream_of(track, slice.track);
    span.stream = *track.stream;
    trace_.timeline.spans.push_back(span);
  }

  void place(const StageSlice& slice) {
    const auto rank = ranks_.find(slice.process);
    const Track& track = tracks_[{slice.process, slice.track}];
    const bool known = rank != ranks_.end() && trace_.timeline.stages.contains(rank->second);
    if (!known || track.role != kStageTrack || slice.span.end_ns <= slice.span.begin_ns) return;
    PassSpan& span = trace_.timeline.passes.emplace_back(slice.span);
    span.rank = rank->second;
    trace_.timeline.step_ns = std::max(trace_.timeline.step_ns, span.end_ns);
  }

  /// Ranks have streams of the same names.
  std::uint8_t stream_of(const Track& track, std::int64_t number) {
    std::vector<std::string>& streams = trace_.timeline.streams;
    const std::string name = track.name.empty() ? fmt::format("track {}", number) : track.name;
    const auto known = std::find(streams.begin(), streams.end(), name);
    if (known != streams.end()) return static_cast<std::uint8_t>(known - streams.begin());
    if (streams.size() == 255) fail("operations run on more than 255 streams");
    streams.push_back(name);
    trace_.roles.push_back(from_word<StreamRole>(track.role).value_or(StreamRole::kSide));
    roles_known_ |= !track.role.empty();
    return static_cast<std::uint8_t>(streams.size() - 1);
  }

  /// Of a trace without roles: computed is where most GEMMs run.
  void infer_roles() {
    if (roles_known_ || trace_.roles.empty()) return;
    std::vector<std::int64_t> products(trace_.roles.size());
    for (const Span& span : trace_.timeline.spans) {
      const OpKind kind = trace_.operations.at(span.id).kind;
      if (is_collective(kind)) trace_.roles[span.stream] = StreamRole::kCommunication;
      products[span.stream] += is_product(kind) ? 1 : 0;
    }
    const auto most = std::max_element(products.begin(), products.end());
    trace_.roles[static_cast<std::size_t>(most - products.begin())] = StreamRole::kCompute;
  }

  /// Counters of the first rank: each says one of the two values of a sample.
  void sample(const Counter& counter) {
    const auto rank = ranks_.find(counter.process);
    if (rank == ranks_.end() || rank->second != ranks_.begin()->second) return;
    std::vector<MemorySample>& curve = trace_.timeline.memory;
    if (curve.empty() || curve.back().at_ns != counter.at_ns) {
      curve.push_back(curve.empty() ? MemorySample{} : curve.back());
      curve.back().at_ns = counter.at_ns;
    }
    (counter.allocated ? curve.back().allocated_bytes : curve.back().reserved_bytes) =
        counter.bytes;
  }

  StepTrace trace_;
  std::vector<Slice> slices_;
  std::vector<StageSlice> stage_slices_;
  std::vector<Counter> counters_;
  std::size_t events_ = 0;
  std::map<std::int64_t, Process> processes_;
  std::set<std::int64_t> processes_with_operations_;
  std::map<std::int64_t, std::map<OpId, TracedOperation>> operations_;  // by process
  std::map<std::pair<std::int64_t, std::int64_t>, Track> tracks_;       // by process and number
  std::map<std::int64_t, std::int32_t> ranks_;                          // by process
  bool roles_known_ = false;
};

}  // namespace

StepTrace read_step_trace(const std::filesystem::path& file) {
  return Reader(file).read(file);
}

StepTrace step_trace_of(std::span<const Schedule> stages, Timeline timeline, std::string name) {
  StepTrace trace;
  trace.name = std::move(name);
  std::set<OpId> seen;
  const auto keep = [&](std::vector<Span>& spans, bool host) {
    std::erase_if(spans, [&](const Span& span) {
      // A call within the issue of an operation is not the issue.
      if (span.id >= 0 && !(host && span.name >= 0)) return seen.insert(span.id), false;
      if (!host) {
        ++trace.foreign;
        trace.foreign_s += static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
      }
      return true;
    });
  };
  keep(timeline.spans, false);
  keep(timeline.host, true);
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const Schedule& schedule = stages[stage];
    for_each_op(schedule, [&](const OpInstance& at, const Op& op) {
      if (!seen.contains(at.id)) return;
      const bool in_layer = at.unit >= 1 && at.unit <= schedule.layers;
      trace.operations[at.id] = {describe(schedule, at),
                                 op.kind,
                                 op.phase,
                                 in_layer ? at.unit - 1 : -1,
                                 static_cast<std::int32_t>(stage),
                                 communicates(op) ? std::optional(op.work.group) : std::nullopt,
                                 op.peer,
                                 op.channel};
    });
  }
  const std::vector<Stream>& streams = stages.front().streams;
  for (std::size_t i = 0; i < timeline.streams.size(); ++i) {
    trace.roles.push_back(i < streams.size() ? streams[i].role : StreamRole::kSide);
  }
  trace.timeline = std::move(timeline);
  trace.ready_ns = ready_operations(trace);
  return trace;
}

Nanoseconds ready_ns(const StepTrace& trace, const Span& span) {
  const auto ready = trace.ready_ns.find({span.id, span.rank, span.step});
  // Of several kernels the last one waits.
  const bool known = ready != trace.ready_ns.end() && ready->second <= span.end_ns;
  return known ? std::max(ready->second, span.begin_ns) : span.begin_ns;
}

StepTrace of_rank(StepTrace trace, std::int64_t rank) {
  std::set<std::int32_t> ranks;
  for (const Span& span : trace.timeline.spans) ranks.insert(span.rank);
  if (ranks.size() < 2) return trace;
  if (!ranks.contains(static_cast<std::int32_t>(rank))) {
    throw Error(fmt::format("{}: has no rank {}, expected one of its {} ranks, {} to {}",
                            trace.name, rank, ranks.size(), *ranks.begin(), *ranks.rbegin()));
  }
  const auto others = [&](const auto& span) { return span.rank != rank; };
  std::erase_if(trace.timeline.spans, others);
  std::erase_if(trace.timeline.host, others);
  std::erase_if(trace.timeline.passes, others);
  return trace;
}

Model model_of(const TraceIdentity& identity, const std::string& name) {
  return parse_hf_config(identity.model_config, name + ", note model_config", identity.model);
}

void expect_same_model(const StepTrace& trace, const StepTrace& with) {
  if (!trace.identity || !with.identity) return;
  const Model mine = model_of(*trace.identity, trace.name);
  const Model theirs = model_of(*with.identity, with.name);
  const auto shape = [](const Model& m) {
    return std::tuple(m.layers, m.hidden, m.heads, m.kv_heads, m.head_dim, m.ffn, m.vocab,
                      count_parameters(m).total(m.layers));
  };
  if (shape(mine) == shape(theirs)) return;
  throw Error(fmt::format(
      "{}: is of {} ({} layers of {}, vocabulary of {}), but {} of {} ({} layers of {}, vocabulary "
      "of {}); expected a trace of the same model",
      trace.name, mine.name, mine.layers, mine.hidden, mine.vocab, with.name, theirs.name,
      theirs.layers, theirs.hidden, theirs.vocab));
}

std::map<LaneKey, Lane> lanes_of(const Timeline& timeline) {
  std::map<LaneKey, Lane> lanes;
  for (const Span& span : timeline.spans) lanes[{span.step, span.rank}].spans.push_back(&span);
  for (const Span& span : timeline.host) lanes[{span.step, span.rank}].host.push_back(&span);
  for (const PassSpan& span : timeline.passes)
    lanes[{span.step, span.rank}].passes.push_back(&span);
  const auto earlier = [](const auto* a, const auto* b) { return a->begin_ns < b->begin_ns; };
  for (auto& [key, lane] : lanes) {
    std::stable_sort(lane.spans.begin(), lane.spans.end(), earlier);
    std::stable_sort(lane.passes.begin(), lane.passes.end(), earlier);
  }
  return lanes;
}

namespace {

constexpr int kMostDepth = 64;

/// A ByteStream as the standard library's streams read.
class StreamBuffer : public std::streambuf {
 public:
  explicit StreamBuffer(profiles::ByteStream& bytes) : bytes_(bytes) {}

 private:
  int_type underflow() override {
    const std::size_t size = bytes_.read(buffer_.data(), buffer_.size());
    setg(buffer_.data(), buffer_.data(), buffer_.data() + size);
    return size == 0 ? traits_type::eof() : traits_type::to_int_type(buffer_[0]);
  }

  profiles::ByteStream& bytes_;
  std::array<char, std::size_t{1} << 16> buffer_;
};

/// Takes events out of a document while it is parsed.
struct EventReader {
  std::string name;
  const std::function<void(json&)>& take;
  std::string key;      // of the document's member that is being read
  bool bare = false;    // the document is the list itself
  bool listed = false;  // it has traceEvents

  /// Whether the parser keeps what it has read.
  bool on_event(int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMostDepth) {
      throw Error(fmt::format("{}: nests deeper than {} levels", name, kMostDepth));
    }
    if (event == json::parse_event_t::array_start && depth == 0) bare = true;
    if (event == json::parse_event_t::key && depth == 1) key = parsed.get<std::string>();
    if (event == json::parse_event_t::array_start && depth == 1 && key == "traceEvents") {
      listed = true;
    }
    const bool ends_event = event == json::parse_event_t::object_end &&
                            (bare ? depth == 1 : depth == 2 && key == "traceEvents");
    if (ends_event) take(parsed);
    return !ends_event;
  }

  std::map<std::string, std::string> notes_of(const json& root) const {
    if (!bare && !listed) {
      throw Error(fmt::format(
          "{}: expected a Chrome trace with a list of traceEvents, as --trace writes it", name));
    }
    std::map<std::string, std::string> notes;
    if (!root.is_object() || !root.contains("otherData") || !root["otherData"].is_object()) {
      return notes;
    }
    for (const auto& [note, value] : root["otherData"].items()) {
      notes[note] = value.is_string() ? value.get<std::string>()
                                      : value.dump(-1, ' ', false, json::error_handler_t::replace);
    }
    return notes;
  }
};

/// Numbers of one file's processes or flows in a file that holds several files' ones.
class Renumbered {
 public:
  /// The numbers of the next file are others, though they be equal.
  void next_file() { seen_.clear(); }
  std::int64_t of(std::int64_t number) {
    const auto [at, fresh] = seen_.try_emplace(number, count_ + 1);
    if (fresh) ++count_;
    return at->second;
  }

 private:
  std::map<std::int64_t, std::int64_t> seen_;
  std::int64_t count_ = 0;
};

/// Puts `title` before the name of a process, and sorts it by its new number.
void rename_process(json& event, const std::string& title, std::int64_t process) {
  if (text_of(event, "ph") != "M" || !event.contains("args") || !event["args"].is_object()) return;
  json& args = event["args"];
  const std::string name = text_of(args, "name");
  if (text_of(event, "name") == "process_name" && !name.starts_with(title)) {
    args["name"] = title + ": " + name;
    if (args.contains("timeline")) args["timeline"] = title + ": " + text_of(args, "timeline");
  }
  if (args.contains("sort_index") && text_of(event, "name") == "process_sort_index") {
    args["sort_index"] = process;
  }
}

}  // namespace

std::string text_of(const json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

double number_of(const json& object, const char* key, double fallback) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number() ? at->get<double>() : fallback;
}

std::int64_t integer_of(const json& object, const char* key, std::int64_t fallback) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number_integer() ? at->get<std::int64_t>() : fallback;
}

std::map<std::string, std::string> for_each_event(const std::filesystem::path& file,
                                                  const std::function<void(json&)>& take) {
  profiles::ByteStream bytes(file);
  StreamBuffer buffer(bytes);
  std::istream in(&buffer);
  EventReader reader{file.string(), take, "", false, false};
  try {
    return reader.notes_of(json::parse(in, [&](int depth, json::parse_event_t event, json& parsed) {
      return reader.on_event(depth, event, parsed);
    }));
  } catch (const json::parse_error& error) {
    if (bytes.damaged()) {
      throw Error(
          fmt::format("{}: the compressed file ends early or is damaged, expected a whole "
                      "Chrome trace",
                      file.string()));
    }
    throw Error(fmt::format("{}: byte {}: is no JSON, expected a Chrome trace with traceEvents",
                            file.string(), error.byte));
  } catch (const json::exception&) {
    throw Error(fmt::format("{}: holds a number or text that cannot be read", file.string()));
  }
}

void merge_chrome_traces(const std::vector<std::filesystem::path>& paths,
                         const std::vector<std::string>& titles,
                         const std::filesystem::path& target) {
  SHARDWRIGHT_CHECK(paths.size() == titles.size(), "{} traces, {} titles", paths.size(),
                    titles.size());
  AtomicFile out(target);
  out.write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
  bool first = true;
  Renumbered processes, flows;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    processes.next_file();
    flows.next_file();
    for_each_event(paths[i], [&](json& event) {
      const std::int64_t process = processes.of(integer_of(event, "pid", 0));
      event["pid"] = process;
      if (event.contains("id") && event["id"].is_number_integer()) {
        event["id"] = flows.of(integer_of(event, "id", 0));
      }
      rename_process(event, titles[i], process);
      out.write(first ? "\n" : ",\n");
      out.write(event.dump(-1, ' ', false, json::error_handler_t::replace));
      first = false;
    });
  }
  out.write("\n]}\n");
  out.commit();
}

namespace {

// Operations of the plan per span of the trace. Every operation has a span on the host in every
// step, or one on a stream where a run traced only those.
constexpr std::int64_t kMostPerSpan = 16;

/// A plan of many more passes than were traced is refused before they are written down.
void check_passes(const StepTrace& trace) {
  const PipelineShape shape = pipeline_shape(trace.identity->plan);
  if (shape.stages == 1) return;
  check_shape(shape);
  const double passes = 2.0 * shape.stages * shape.chunks * shape.passes();
  if (passes > 2.0 * static_cast<double>(trace.timeline.passes.size())) {
    throw Error(
        fmt::format("{}: the plan in its notes has {:.0f} passes a step, but the trace only {} "
                    "slices of passes, expected the plan that was traced",
                    trace.name, passes, trace.timeline.passes.size()));
  }
}

}  // namespace

std::vector<Schedule> schedules_of(const StepTrace& trace) {
  if (!trace.identity) {
    throw Error(
        fmt::format("{}: has no plan in its notes, expected a trace that run --trace of this "
                    "version wrote",
                    trace.name));
  }
  const TraceIdentity& identity = *trace.identity;
  const Model model = model_of(identity, trace.name);
  check_plan(identity.plan, model, identity.gpus_per_node);
  const Stack stack = profiles::load_stack(identity.plan.stack).stack;
  check_passes(trace);
  std::vector<Schedule> stages =
      executed_step(model, identity.plan, stack, identity.gpus_per_node).stages;
  double count = 0;  // of operations, which no integer need hold
  for (const Schedule& schedule : stages) {
    for (const Section& section : schedule.sections) {
      for (const Block& block : schedule.blocks_of(section)) {
        count += static_cast<double>(section.repeats) * block.repeats * block.op_count;
      }
    }
  }
  const std::size_t spans = trace.timeline.spans.size() + trace.timeline.host.size();
  if (trace.timeline.passes.empty() && count > static_cast<double>(spans) * kMostPerSpan) {
    throw Error(
        fmt::format("{}: the plan in its notes has {:.0f} operations a step, but the trace only {} "
                    "slices of operations, expected the plan that was traced",
                    trace.name, count, spans));
  }
  auto traced = trace.operations.begin();
  const auto check = [&](const std::string& planned) {
    if (traced->second.name == planned) return void(++traced);
    throw Error(
        fmt::format("{}: operation {} is {}, but of the plan in its notes it is {}; the trace "
                    "was written by another version",
                    trace.name, traced->first, traced->second.name, planned));
  };
  for (const Schedule& schedule : stages) {
    for_each_op(schedule, [&](const OpInstance& at, const Op&) {
      if (traced != trace.operations.end() && traced->first == at.id) check(describe(schedule, at));
    });
  }
  if (traced != trace.operations.end()) {
    check(fmt::format("none, because the step has {:.0f} operations", count));
  }
  return stages;
}

}  // namespace shardwright::sim
