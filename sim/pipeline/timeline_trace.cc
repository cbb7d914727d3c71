// SPDX-License-Identifier: Apache-2.0
#include "sim/pipeline/timeline_trace.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "sim/core/event_writer.h"

namespace shardwright::sim {
namespace {

/// Tracks of a stage, in the order in which they stand. Transfers take several from theirs on.
constexpr int kStageTrack = 1, kReductionTrack = 2, kOpenedTrack = 3, kOpenedCommTrack = 4,
              kForwardTrack = 10, kBackwardTrack = 40;

/// Forward passes count up, all others after them, by (stage, chunk, micro-batch).
struct PassKey {
  std::int32_t stage = 0, chunk = 0;
  bool forward = true;
  auto operator<=>(const PassKey&) const = default;
};

bool is_pass(SliceKind kind) {
  return kind <= SliceKind::kWeightGradient;
}

class StageTraceWriter {
 public:
  StageTraceWriter(EventWriter& out, const ParallelTimeline& timeline, const std::string& title,
                   int first_process)
      : out_(out), timeline_(timeline), title_(title), first_process_(first_process) {}

  void write(std::int64_t& flow) {
    for (std::int32_t s = 0; s < timeline_.shape.stages; ++s) {
      const StageTimeline& stage = timeline_.stages[static_cast<std::size_t>(s)];
      name_process(s);
      name_track(s, kStageTrack, "stage");
      for (const StageSlice& slice : stage.slices) write_slice(s, kStageTrack, slice);
      if (!stage.reductions.empty()) name_track(s, kReductionTrack, "reduction of gradients");
      for (const StageSlice& slice : stage.reductions) write_slice(s, kReductionTrack, slice);
      write_opened(s, stage);
    }
    write_transfers();
    write_flows(flow);
  }

 private:
  int process(std::int32_t stage) const { return first_process_ + stage; }

  void name_process(std::int32_t s) {
    const std::string name = fmt::format("{}: stage {} of {} ({})", title_, s,
                                         timeline_.shape.stages, stage_content(timeline_, s));
    out_.event(R"("ph":"M","pid":{},"name":"process_name","args":{{"name":{}}})", process(s),
               json_string(name));
    out_.event(R"("ph":"M","pid":{},"name":"process_sort_index","args":{{"sort_index":{}}})",
               process(s), process(s));
  }

  void name_track(std::int32_t s, int track, const std::string& name) {
    out_.event(R"("ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{}}})",
               process(s), track, json_string(name));
    out_.event(
        R"("ph":"M","pid":{},"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}})",
        process(s), track, track);
  }

  void slice(std::int32_t s, int track, Nanoseconds begin, Nanoseconds end, const std::string& name,
             std::string_view category, const std::string& args) {
    out_.event(R"("ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"cat":"{}","args":{{{}}})",
               process(s), track, microseconds(begin), microseconds(end - begin), json_string(name),
               category, args);
  }

  void write_slice(std::int32_t s, int track, const StageSlice& of) {
    std::string args;
    if (is_pass(of.kind)) {
      args = fmt::format(R"("micro_batch":{},"chunk":{})", of.micro_batch, of.chunk);
    }
    slice(s, track, of.begin_ns, of.end_ns, slice_name(timeline_, of), name_of(of.kind), args);
  }

  void write_opened(std::int32_t s, const StageTimeline& stage) {
    if (stage.operations.empty()) return;
    const std::string of = fmt::format(
        "micro-batch {}{}", stage.opened_micro_batch,
        timeline_.shape.chunks > 1 ? fmt::format(", chunk {}", stage.opened_chunk) : std::string());
    name_track(s, kOpenedTrack, "compute of " + of);
    name_track(s, kOpenedCommTrack, "communication of " + of);
    for (const OperationSlice& op : stage.operations) {
      std::string args =
          fmt::format(R"("kind":"{}","phase":"{}")", shardwright::name_of(op.op.kind),
                      shardwright::name_of(op.phase));
      if (op.layer >= 0) args += fmt::format(R"(,"layer":{})", op.layer);
      const Work& work = op.op.work;
      if (work.kind == WorkKind::kGemm) {
        args += fmt::format(R"(,"m":{},"n":{},"k":{})", work.m, work.n, work.k);
      } else if (work.kind == WorkKind::kMemory) {
        args += fmt::format(R"(,"bytes":{})", work.bytes);
      }
      if (op.op.work.groups > 1) args += fmt::format(R"(,"groups":{})", op.op.work.groups);
      if (op.op.collective.bytes > 0) {
        args += fmt::format(R"(,"collective_bytes":{:.0f},"group":"{}")", op.op.collective.bytes,
                            name_of(op.op.collective.group));
      }
      slice(s, op.communication ? kOpenedCommTrack : kOpenedTrack, op.begin_ns, op.end_ns,
            operation_name(op), shardwright::name_of(op.phase), args);
    }
  }

  void write_transfers() {
    // Slices of one track may not overlap in part, so each takes the first track that is free.
    std::map<std::pair<std::int32_t, bool>, std::vector<Nanoseconds>> busy;
    std::vector<const Transfer*> order;
    for (const Transfer& transfer : timeline_.transfers) order.push_back(&transfer);
    std::stable_sort(order.begin(), order.end(), [](const Transfer* a, const Transfer* b) {
      return a->begin_ns < b->begin_ns;
    });
    for (const Transfer* t : order) {
      std::vector<Nanoseconds>& tracks = busy[{t->from, t->forward}];
      std::size_t lane = 0;
      while (lane < tracks.size() && tracks[lane] > t->begin_ns) ++lane;
      const int track = (t->forward ? kForwardTrack : kBackwardTrack) + static_cast<int>(lane);
      if (lane == tracks.size()) {
        tracks.push_back(0);
        name_track(t->from, track, t->forward ? "sends activations" : "sends gradients");
      }
      tracks[lane] = t->end_ns;
      slice(t->from, track, t->begin_ns, t->end_ns, fmt::format("to stage {}", t->to), "transfer",
            fmt::format(R"("micro_batch":{},"chunk":{},"to":{})", t->micro_batch, t->chunk, t->to));
    }
  }

  /// Arrows of the micro-batch in the middle, along the chunks and back.
  void write_flows(std::int64_t& flow) {
    std::map<PassKey, const StageSlice*> passes;
    for (std::int32_t s = 0; s < timeline_.shape.stages; ++s) {
      const StageTimeline& stage = timeline_.stages[static_cast<std::size_t>(s)];
      for (const StageSlice& of : stage.slices) {
        if (!is_pass(of.kind) || of.kind == SliceKind::kWeightGradient ||
            of.micro_batch != stage.opened_micro_batch) {
          continue;
        }
        passes[{s, of.chunk, of.kind == SliceKind::kForward}] = &of;
      }
    }
    for (const auto& [key, from] : passes) {
      const ChunkPlace here{key.stage, key.chunk};
      const std::optional<ChunkPlace> next =
          key.forward ? next_chunk(timeline_.shape, here) : previous_chunk(timeline_.shape, here);
      const auto to = next ? passes.find({next->stage, next->chunk, key.forward}) : passes.end();
      if (to == passes.end()) continue;
      ++flow;
      const char* name = key.forward ? "activations" : "gradients";
      out_.event(R"("ph":"s","pid":{},"tid":{},"ts":{},"id":{},"name":"{}","cat":"micro-batch")",
                 process(key.stage), kStageTrack, microseconds(from->end_ns - 1), flow, name);
      out_.event(
          R"("ph":"f","bp":"e","pid":{},"tid":{},"ts":{},"id":{},"name":"{}","cat":"micro-batch")",
          process(next->stage), kStageTrack, microseconds(to->second->begin_ns), flow, name);
    }
  }

  EventWriter& out_;
  const ParallelTimeline& timeline_;
  const std::string& title_;
  int first_process_;
};

}  // namespace

std::string stage_content(const ParallelTimeline& timeline, std::int32_t stage) {
  std::vector<std::string> layers, others;
  for (std::int32_t c = 0; c < timeline.shape.chunks; ++c) {
    const ChunkContent& part = of_chunk(timeline.parts, timeline.shape, {stage, c});
    const std::int64_t last = part.first_layer + part.layers - 1;
    if (part.embedding) others.emplace_back("embedding");
    if (part.layers == 1) layers.push_back(fmt::format("{}", last));
    if (part.layers > 1) layers.push_back(fmt::format("{} to {}", part.first_layer, last));
    if (part.extra_predictions > 0) others.emplace_back("multi-token prediction");
    if (part.head) others.emplace_back("head");
  }
  if (!layers.empty()) {
    others.insert(others.begin(), fmt::format("layers {}", fmt::join(layers, ", ")));
  }
  return fmt::format("{}", fmt::join(others, ", "));
}

std::string slice_name(const ParallelTimeline& timeline, const StageSlice& slice) {
  if (!is_pass(slice.kind)) return std::string(name_of(slice.kind));
  std::string name = fmt::format("{} {}", name_of(slice.kind), slice.micro_batch);
  if (timeline.shape.chunks > 1) name += fmt::format(", chunk {}", slice.chunk);
  return name;
}

std::string operation_name(const OperationSlice& slice) {
  const CollectiveWork& c = slice.op.collective;
  std::string name(shardwright::name_of(slice.op.kind));
  if (c.bytes <= 0) return name;
  const std::string_view group = name_of(c.group);
  if (slice.communication) return fmt::format("{}, {}", name, group);
  return fmt::format("{}, {} collective in pieces", name, group);
}

void write_stage_trace(const std::filesystem::path& path, std::span<const TitledTimeline> timelines,
                       const std::vector<std::pair<std::string, std::string>>& notes) {
  EventWriter out(path);
  int process = 1;
  std::int64_t flow = 0;
  for (const TitledTimeline& titled : timelines) {
    StageTraceWriter(out, *titled.timeline, titled.title, process).write(flow);
    process += titled.timeline->shape.stages;
  }
  out.finish(notes);
}

}  // namespace shardwright::sim
