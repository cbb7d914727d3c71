// SPDX-License-Identifier: Apache-2.0
// The events of a Chrome trace, written through a buffer into a file that is whole or not there.
//
// For the few files that write traces: the templates below format each event where it arises.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/base/atomic_file.h"
#include "sim/core/units.h"

namespace shardwright {

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
