// SPDX-License-Identifier: Apache-2.0
// Reads Chrome traces: what chrome_trace.h writes, and others as far as they follow the format.
//
// Slices (complete events, "X") come with the names of their process and track and, where the trace
// was written here, with the operation's id, phase, kind and micro-step. Other events are left
// alone; merge_chrome_traces carries them into a new file unread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace shardwright {

struct TraceSlice {
  std::int64_t process = 0;
  std::int64_t track = 0;
  std::string name;
  double begin_us = 0;
  double duration_us = 0;
  std::int64_t id = -1;  // of the operation; -1: none
  std::string phase;     // empty: none
  std::string kind;      // empty: none
  std::string unit;      // empty: none
  std::int64_t step = 0;
  std::int64_t micro_step = 0;
};

inline constexpr std::size_t kMostSlices = 20'000'000;

struct ReadTrace {
  std::map<std::int64_t, std::string> processes;                        // by number
  std::map<std::pair<std::int64_t, std::int64_t>, std::string> tracks;  // by process and number
  std::vector<TraceSlice> slices;                                       // in the file's order
  std::map<std::string, std::string> notes;  // otherData, texts and numbers alike as text
};

/// Reads event by event: what is kept is the slices, not the file. Throws Error when the file is no
/// Chrome trace or has more than kMostSlices.
ReadTrace read_chrome_trace(const std::filesystem::path& path);

/// Writes the events of several traces into one, the processes of the first file above those of the
/// second and so on. `titles`, one for each, go before the names of their processes.
void merge_chrome_traces(const std::vector<std::filesystem::path>& paths,
                         const std::vector<std::string>& titles,
                         const std::filesystem::path& target);

}  // namespace shardwright
