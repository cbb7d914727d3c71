// SPDX-License-Identifier: Apache-2.0
// Writes timelines as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.
//
// One process for every rank of every timeline, in the order given, so that predicted can stand
// above measured; in it a track for the host and one for each stream, counters of allocated and
// reserved memory and of bytes in flight, and an arrow from each gather to what uses it first. A
// track says its role: the host's, the stream's or, of a pipeline's stage, that of what it does:
// passes by chunk and micro-batch, bubbles and the tail of the step. Times are microseconds with
// three decimals: nothing is lost. A slice's args carry the operation's id, so that a reader finds
// the operation again. Events are streamed; the file is whole or not there.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/base/atomic_file.h"
#include "sim/core/plan.h"
#include "sim/core/schedule.h"
#include "sim/core/timeline.h"
#include "sim/core/units.h"

namespace shardwright {

struct TracedTimeline {
  std::string title;         // name of the process; ranks other than 0 are added to it
  const Schedule* schedule;  // what the spans' ids refer to; of a pipeline the first stage's of all
  const Timeline* timeline;
};

/// `notes` become the trace's metadata (otherData). Throws Error when the file cannot be written.
void write_chrome_trace(const std::filesystem::path& path,
                        std::span<const TracedTimeline> timelines,
                        const std::vector<std::pair<std::string, std::string>>& notes = {});

/// For each gather of the step the first kernel that waits for it, in host order. Gathers that
/// nothing waits for within the step (of a following step's parameters) are left out.
struct GatherUse {
  OpId gather = 0;
  OpId use = 0;
};
std::vector<GatherUse> gather_uses(const Schedule& schedule);

// What a trace says of the plan that its operations belong to, so that whoever has the trace has
// the schedule: it travels in the trace's notes (otherData of a Chrome trace).
//
// With it the plan is lowered again and every slice's id finds its operation, and two traces of
// different plans are told apart by what differs instead of by nonsense.

struct TraceIdentity {
  std::string model;         // name or path as given
  std::string model_config;  // the text of its config.json
  Plan plan;                 // with its stack
  std::int64_t gpus_per_node = 1;
};

using TraceNotes = std::vector<std::pair<std::string, std::string>>;

/// The notes that carry the identity.
TraceNotes notes_of(const TraceIdentity& identity);

/// Where a measured trace was recorded.
struct TraceOrigin {
  std::string device;       // "host" or "cuda"
  std::string device_name;  // "NVIDIA H200", "AMD EPYC"
  std::int64_t units = 0;   // SMs, or threads that compute
  Bytes memory_bytes = 0;
  std::int64_t devices = 0;      // that all ranks share; 0: each has its own
  std::string streams;           // "inline": operations run as they are issued; "virtual": side by
                                 // side, none slowing another
  std::string software;          // "NCCL 2.21.5"
  std::string date;              // YYYY-MM-DD
  std::string transport{};       // how ranks reached each other: "local", "nccl", "mpi"
  std::vector<double> step_s{};  // how long each step in it took
};
TraceNotes notes_of(const TraceOrigin& origin);
/// As far as the notes say; what is damaged in them counts as not said.
TraceOrigin origin_in(const std::map<std::string, std::string>& notes);

/// The identity in the notes of the trace `name`; none where a trace was written without. Throws
/// Error when it is damaged.
std::optional<TraceIdentity> identity_in(const std::map<std::string, std::string>& notes,
                                         const std::string& name);

/// What differs, one clause each: "grad_accum is 2, not 1", "the model's hidden_size is 64, not
/// 128". `other` is what it is compared with. Empty: nothing.
std::vector<std::string> differences(const TraceIdentity& identity, const TraceIdentity& other);

// The events of a Chrome trace, written through a buffer into a file that is whole or not there.
//
// For the few files that write traces: the templates below format each event where it arises.

/// `text` as a JSON string, quotes included; bytes that are no UTF-8 are replaced.
std::string json_string(const std::string& text);

/// Microseconds with three decimals: nothing is lost.
std::string microseconds(Nanoseconds ns);

class EventWriter {
 public:
  explicit EventWriter(const std::filesystem::path& path) : file_(path) {
    append("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
  }

  /// One event: the members of its object, without braces.
  template <typename... Args>
  void event(fmt::format_string<Args...> members, Args&&... args) {
    append("{}\n{{", first_ ? "" : ",");
    first_ = false;
    append(members, std::forward<Args>(args)...);
    append("}}");
    if (buffer_.size() > kFlushAt) flush();
  }

  /// `notes` become the trace's metadata (otherData).
  void finish(const std::vector<std::pair<std::string, std::string>>& notes) {
    append("\n],\"otherData\":{{");
    for (std::size_t i = 0; i < notes.size(); ++i) {
      append("{}{}:{}", i == 0 ? "" : ",", json_string(notes[i].first),
             json_string(notes[i].second));
    }
    append("}}}}\n");
    flush();
    file_.commit();
  }

 private:
  static constexpr std::size_t kFlushAt = std::size_t{1} << 18;

  template <typename... Args>
  void append(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Args>(args)...);
  }
  void flush() {
    file_.write({buffer_.data(), buffer_.size()});
    buffer_.clear();
  }

  AtomicFile file_;
  fmt::memory_buffer buffer_;
  bool first_ = true;
};

}  // namespace shardwright
