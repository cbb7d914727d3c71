// SPDX-License-Identifier: Apache-2.0
#include "cli/memory/predicted_snapshot.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/core/base/error.h"
#include "sim/core/features.h"
#include "sim/core/memory_actions.h"
#include "sim/core/schedule.h"
#include "sim/memory/allocator.h"
#include "sim/pipeline/step_program.h"

namespace shardwright::cli {
namespace {

using sim::CachingAllocator;
using BlockId = CachingAllocator::BlockId;

// Where a GPU's addresses begin, so that they look like ones.
constexpr Bytes kBase = Bytes{0x7f} << 40;
constexpr std::int64_t kDrawnMicroSteps = 2;

/// Writes a pickle of protocol 2 with the instructions that PyTorch's own viewer reads, too.
class PickleWriter {
 public:
  PickleWriter& begin_dict() { return put("}("); }
  PickleWriter& end_dict() { return put("u"); }
  PickleWriter& begin_list() { return put("]("); }
  PickleWriter& end_list() { return put("e"); }
  PickleWriter& key(std::string_view text) { return text_value(text); }
  PickleWriter& text_value(std::string_view text) {
    return put("X").number(text.size(), 4).put(text);
  }
  PickleWriter& integer(std::int64_t value) {
    const bool small = value >= INT32_MIN && value <= INT32_MAX;
    return put(small ? "J" : "\x8a\x08").number(static_cast<std::uint64_t>(value), small ? 4 : 8);
  }
  PickleWriter& boolean(bool value) { return put(value ? "\x88" : "\x89"); }
  /// The two integers of a pool's id.
  PickleWriter& pair(std::int64_t first, std::int64_t second) {
    return integer(first).integer(second).put("\x86");
  }
  /// The whole file; nothing may be written after it.
  std::string finish() { return std::move(bytes_) + "."; }

 private:
  PickleWriter& put(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }
  PickleWriter& number(std::uint64_t bits, int bytes) {
    for (int i = 0; i < bytes; ++i) bytes_ += static_cast<char>((bits >> (8 * i)) & 0xff);
    return *this;
  }

  std::string bytes_ = "\x80\x02";
};

struct DrawnBlock {
  Bytes address = 0, bytes = 0, block_bytes = 0;
  int stream = 0;
  std::string what, where;
};

struct DrawnSegment {
  Bytes address = 0, bytes = 0;
  int stream = 0;
};

void write_frames(PickleWriter& out, const std::string& what, const std::string& where) {
  out.key("frames").begin_list();
  for (const std::string* text : {&what, &where}) {
    out.begin_dict().key("name").text_value(*text).key("filename").text_value("shardwright");
    out.key("line").integer(0).end_dict();
  }
  out.end_list();
}

class SnapshotDrawing {
 public:
  explicit SnapshotDrawing(bool expandable)
      : allocator_(options(expandable)), expandable_(expandable) {
    events_.begin_list();
  }

  void acquire(std::pair<Tensor, std::int32_t> tensor, Bytes bytes, int stream, std::string what,
               std::string where) {
    if (bytes <= 0) return;
    const Bytes reserved = allocator_.stats().reserved.now;
    const std::optional<BlockId> block = allocator_.allocate(bytes, stream, 0);
    if (!block) return;
    DrawnBlock drawn{kBase + allocator_.block_address(*block),
                     bytes,
                     allocator_.block_size(*block),
                     stream,
                     std::move(what),
                     std::move(where)};
    grow(drawn, allocator_.stats().reserved.now - reserved);
    event("alloc", drawn.address, drawn.bytes, stream, drawn.what, drawn.where);
    live_[tensor].push_back({*block, std::move(drawn)});
  }

  void release(std::pair<Tensor, std::int32_t> tensor, const std::string& where) {
    const auto at = live_.find(tensor);
    if (at == live_.end()) return;
    for (const auto& [block, drawn] : at->second) {
      for (const char* action : {"free_requested", "free_completed"})
        event(action, drawn.address, drawn.bytes, drawn.stream, drawn.what, where);
      allocator_.free(block);
    }
    live_.erase(at);
  }

  void release_all(Tensor tensor, const std::string& where) {
    std::vector<std::int32_t> units;
    for (const auto& [key, blocks] : live_) {
      if (key.first == tensor) units.push_back(key.second);
    }
    for (const std::int32_t unit : units) release({tensor, unit}, where);
  }

  std::string finish() {
    PickleWriter out = std::move(events_);
    out.end_list().end_list();  // of the device, of all devices
    out.key("segments");
    write_segments(out);
    out.key("allocator_settings").begin_dict().key("expandable_segments").boolean(expandable_);
    out.end_dict().key("external_annotations").begin_list().end_list();
    return out.end_dict().finish();
  }

 private:
  static sim::AllocatorOptions options(bool expandable) {
    sim::AllocatorOptions options;
    options.expandable_segments = expandable;
    return options;
  }

  /// The device gave `bytes`: a segment of its own, or more of one that grows.
  void grow(const DrawnBlock& block, Bytes bytes) {
    if (bytes <= 0) return;
    for (DrawnSegment& segment : segments_) {
      if (!expandable_ || segment.stream != block.stream) continue;
      if (block.address < segment.address || block.address > segment.address + segment.bytes)
        continue;
      event("segment_map", segment.address + segment.bytes, bytes, segment.stream, "device memory",
            "");
      segment.bytes += bytes;
      return;
    }
    segments_.push_back({block.address, bytes, block.stream});
    event(expandable_ ? "segment_map" : "segment_alloc", block.address, bytes, block.stream,
          "device memory", "");
  }

  void event(std::string_view action, Bytes address, Bytes bytes, int stream,
             const std::string& what, const std::string& where) {
    events_.begin_dict().key("action").text_value(action).key("addr").integer(address);
    events_.key("size").integer(bytes).key("stream").integer(stream);
    events_.key("time_us").integer(time_us_++);
    write_frames(events_, what, where);
    events_.end_dict();
  }

  void write_segments(PickleWriter& out) {
    std::map<Bytes, const DrawnBlock*> blocks;
    for (const auto& [tensor, list] : live_) {
      for (const auto& [block, drawn] : list) blocks[drawn.address] = &drawn;
    }
    out.begin_list();
    for (const DrawnSegment& segment : segments_) {
      const Bytes end = segment.address + segment.bytes;
      Bytes allocated = 0, at = segment.address;
      out.begin_dict().key("device").integer(0).key("address").integer(segment.address);
      out.key("total_size").integer(segment.bytes).key("stream").integer(segment.stream);
      out.key("segment_type").text_value(segment.bytes <= (Bytes{2} << 20) ? "small" : "large");
      out.key("segment_pool_id").pair(0, 0).key("is_expandable").boolean(expandable_);
      out.key("frames").begin_list().end_list().key("blocks").begin_list();
      const auto write_block = [&](Bytes address, Bytes size, Bytes requested,
                                   const DrawnBlock* of) {
        out.begin_dict().key("address").integer(address).key("size").integer(size);
        out.key("requested_size").integer(requested);
        out.key("state").text_value(of != nullptr ? "active_allocated" : "inactive");
        if (of != nullptr) {
          write_frames(out, of->what, of->where);
        } else {
          out.key("frames").begin_list().end_list();
        }
        out.end_dict();
      };
      for (auto block = blocks.lower_bound(segment.address);
           block != blocks.end() && block->first < end; ++block) {
        const DrawnBlock& drawn = *block->second;
        if (drawn.address > at) write_block(at, drawn.address - at, 0, nullptr);
        write_block(drawn.address, drawn.block_bytes, drawn.bytes, &drawn);
        at = drawn.address + drawn.block_bytes;
        allocated += drawn.block_bytes;
      }
      if (at < end) write_block(at, end - at, 0, nullptr);
      out.end_list().key("allocated_size").integer(allocated).key("active_size").integer(allocated);
      out.key("requested_size").integer(allocated).end_dict();
    }
    out.end_list();
  }

  /// The root dictionary and its first key, whose value the events are.
  static PickleWriter opened() {
    PickleWriter out;
    out.begin_dict().key("device_traces").begin_list();
    return out;
  }

  CachingAllocator allocator_;
  bool expandable_;
  PickleWriter events_ = opened();
  std::int64_t time_us_ = 0;
  std::map<std::pair<Tensor, std::int32_t>, std::vector<std::pair<BlockId, DrawnBlock>>> live_;
  std::vector<DrawnSegment> segments_;
};

std::string unit_words(const Schedule& schedule, std::int32_t unit) {
  if (unit <= 0) return "embedding";
  if (unit == schedule.head_unit()) return "head";
  return unit > schedule.head_unit() ? "shared" : fmt::format("layer {}", unit);
}

}  // namespace

std::string predicted_snapshot(const sim::Job& job, const Plan& plan) {
  refuse_beyond(plan, {}, "a memory snapshot is drawn of data-parallel steps only",
                "a plan without it");
  Plan drawn = plan;
  drawn.grad_accum = std::min(plan.grad_accum, kDrawnMicroSteps);
  const Stack& stack = job.profile.stack;
  const sim::StepProgram step =
      sim::executed_step(job.model, drawn, stack, job.profile.cluster.gpus_per_node);
  const Schedule& schedule = first_of(step.stages, "the step");
  const bool expandable =
      drawn.allocator == AllocatorKind::kExpandable ||
      (drawn.allocator == AllocatorKind::kStack && stack.allocator.expandable_segments);
  SnapshotDrawing drawing(expandable);
  std::int32_t number = 0;
  for (const PersistentTensor& tensor : schedule.persistent) {
    drawing.acquire({Tensor::kNone, --number}, tensor.bytes, 0,
                    std::string(name_of(tensor.category())), "before the step");
  }
  MemoryActions actions(schedule);
  for_each_op(schedule, [&](const OpInstance& instance, const Op&) {
    for (const MemoryAction& a : actions.of(instance)) {
      const std::string where = describe(schedule, instance);
      if (!a.acquire && a.offset == kAllUnits) {
        drawing.release_all(a.tensor, where);
        continue;
      }
      const std::int32_t unit = std::max(instance.unit + a.offset, 0);
      if (a.acquire) {
        drawing.acquire({a.tensor, unit}, a.bytes, a.stream,
                        fmt::format("{} of {} ({})", name_of(a.tensor), unit_words(schedule, unit),
                                    name_of(a.category)),
                        where);
      } else {
        drawing.release({a.tensor, unit}, where);
      }
    }
  });
  return drawing.finish();
}

}  // namespace shardwright::cli
