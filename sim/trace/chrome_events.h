// SPDX-License-Identifier: Apache-2.0
// Chrome traces, event by event: what sim/core/chrome_trace.h writes, and others as far as they
// follow the format, plain or gzip.
//
// A trace may hold gigabytes, so that its document never stands in memory whole. What events mean
// is the business of who takes them (sim/trace/step_trace.h).
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace shardwright::sim {

/// Calls `take` with each event, in the file's order. Returns the notes (otherData), texts and
/// numbers alike as text. Throws Error when the file is no Chrome trace or ends early.
std::map<std::string, std::string> for_each_event(
    const std::filesystem::path& file, const std::function<void(nlohmann::json& event)>& take);

/// Members of an event, or `fallback` where there is none of that type.
std::string text_of(const nlohmann::json& object, const char* key);
double number_of(const nlohmann::json& object, const char* key, double fallback);
std::int64_t integer_of(const nlohmann::json& object, const char* key, std::int64_t fallback);

/// Writes the events of several traces into one, the processes of the first file above those of the
/// second and so on. Processes and flows are numbered anew. `titles`, one for each, go before the
/// names of their processes.
void merge_chrome_traces(const std::vector<std::filesystem::path>& paths,
                         const std::vector<std::string>& titles,
                         const std::filesystem::path& target);

}  // namespace shardwright::sim
