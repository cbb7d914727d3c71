// SPDX-License-Identifier: Apache-2.0
#include "sim/core/chrome_trace_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "sim/core/atomic_file.h"
#include "sim/core/check.h"
#include "sim/core/error.h"
#include "sim/core/json_file.h"

namespace shardwright {
namespace {

using nlohmann::json;

constexpr JsonLimits kLimits{.max_bytes = std::size_t{1} << 30, .max_depth = 64};

/// The events of a trace, either an object with "traceEvents" or a bare list.
const json& events_of(const JsonFile& file) {
  const JsonReader root = file.root();
  if (root.is_array()) return root.raw();
  if (!root.is_object() || !root.raw().contains("traceEvents") ||
      !root.raw()["traceEvents"].is_array()) {
    root.fail("a Chrome trace with a list of traceEvents, as --trace writes it");
  }
  return root.raw()["traceEvents"];
}

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

/// Takes events out of a document while it is parsed, so that it never stands in memory whole.
struct EventReader {
  explicit EventReader(std::string file) : name(std::move(file)) {}

  /// Whether the parser keeps what it has read.
  bool on_event(int depth, json::parse_event_t event, json& parsed) {
    if (depth > kLimits.max_depth) {
      throw Error(fmt::format("{}: nests deeper than {} levels", name, kLimits.max_depth));
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

  void take(const json& event) {
    const std::string phase = text_of(event, "ph");
    if (phase != "X" && phase != "M") return;
    const std::int64_t process = integer_of(event, "pid", 0);
    const std::int64_t track = integer_of(event, "tid", 0);
    const json none = json::object();
    const auto found = event.find("args");
    const json& args = found != event.end() && found->is_object() ? *found : none;
    if (phase == "M") {
      if (text_of(event, "name") == "process_name")
        trace.processes[process] = text_of(args, "name");
      if (text_of(event, "name") == "thread_name") {
        trace.tracks[{process, track}] = text_of(args, "name");
      }
      return;
    }
    if (trace.slices.size() == kMostSlices) {
      throw Error(fmt::format("{}: has more than {} slices", name, kMostSlices));
    }
    TraceSlice& slice = trace.slices.emplace_back();
    slice.process = process;
    slice.track = track;
    slice.name = text_of(event, "name");
    slice.begin_us = number_of(event, "ts", 0);
    slice.duration_us = std::max(0.0, number_of(event, "dur", 0));
    slice.id = integer_of(args, "id", -1);
    slice.phase = text_of(args, "phase");
    slice.kind = text_of(args, "kind");
    slice.unit = text_of(args, "unit");
    slice.step = integer_of(args, "step", 0);
    slice.micro_step = integer_of(args, "micro_step", 0);
  }

  void finish(const json& root) {
    if (!bare && !listed) {
      throw Error(fmt::format(
          "{}: expected a Chrome trace with a list of traceEvents, as --trace writes it", name));
    }
    if (!root.is_object() || !root.contains("otherData") || !root["otherData"].is_object()) return;
    for (const auto& [note, value] : root["otherData"].items()) {
      trace.notes[note] = value.is_string()
                              ? value.get<std::string>()
                              : value.dump(-1, ' ', false, json::error_handler_t::replace);
    }
  }

  std::string name;
  std::string key;      // of the document's member that is being read
  bool bare = false;    // the document is the list itself
  bool listed = false;  // it has traceEvents
  ReadTrace trace;
};

}  // namespace

ReadTrace read_chrome_trace(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::error_code refused;
  if (!in || std::filesystem::is_directory(path, refused)) {
    throw Error(fmt::format("{}: cannot be opened, expected a Chrome trace", path.string()));
  }
  EventReader reader(path.string());
  try {
    const json root = json::parse(in, [&](int depth, json::parse_event_t event, json& parsed) {
      return reader.on_event(depth, event, parsed);
    });
    reader.finish(root);
  } catch (const json::parse_error& error) {
    throw Error(fmt::format("{}: byte {}: is no JSON, expected a Chrome trace with traceEvents",
                            path.string(), error.byte));
  } catch (const json::exception&) {
    throw Error(fmt::format("{}: holds a number or text that cannot be read", path.string()));
  }
  return std::move(reader.trace);
}

void merge_chrome_traces(const std::vector<std::filesystem::path>& paths,
                         const std::vector<std::string>& titles,
                         const std::filesystem::path& target) {
  SHARDWRIGHT_CHECK(paths.size() == titles.size(), "{} traces, {} titles", paths.size(),
                    titles.size());
  AtomicFile out(target);
  out.write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
  bool first = true;
  std::int64_t processes = 0, flows = 0;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const JsonFile file = JsonFile::load(paths[i], kLimits);
    std::int64_t most_process = processes, most_flow = flows;
    for (const json& read : events_of(file)) {
      if (!read.is_object()) continue;
      json event = read;
      const std::int64_t process =
          processes + std::max<std::int64_t>(0, integer_of(read, "pid", 0));
      event["pid"] = process;
      most_process = std::max(most_process, process);
      if (event.contains("id") && event["id"].is_number_integer()) {
        const std::int64_t flow = flows + std::max<std::int64_t>(0, integer_of(read, "id", 0));
        event["id"] = flow;
        most_flow = std::max(most_flow, flow);
      }
      if (text_of(event, "ph") == "M" && event.contains("args") && event["args"].is_object()) {
        json& args = event["args"];
        const std::string name = text_of(args, "name");
        if (text_of(event, "name") == "process_name" && !name.starts_with(titles[i])) {
          args["name"] = titles[i] + ": " + name;
        }
        if (args.contains("sort_index") && text_of(event, "name") == "process_sort_index") {
          args["sort_index"] = process;
        }
      }
      out.write(first ? "\n" : ",\n");
      out.write(event.dump(-1, ' ', false, json::error_handler_t::replace));
      first = false;
    }
    processes = most_process + 1;
    flows = most_flow + 1;
  }
  out.write("\n]}\n");
  out.commit();
}

}  // namespace shardwright
