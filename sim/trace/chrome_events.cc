// SPDX-License-Identifier: Apache-2.0
#include "sim/trace/chrome_events.h"

#include <fmt/core.h>

#include <array>
#include <istream>
#include <nlohmann/json.hpp>
#include <streambuf>
#include <utility>

#include "profiles/import/byte_stream.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"

namespace shardwright::sim {
namespace {

using nlohmann::json;

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

}  // namespace shardwright::sim
