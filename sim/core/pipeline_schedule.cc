// SPDX-License-Identifier: Apache-2.0
#include "sim/core/pipeline_schedule.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <vector>

namespace shardwright {

std::string pipeline_schedules_with(bool (*has)(const PipelineInfo&)) {
  std::vector<std::string_view> names;
  for (const PipelineInfo& info : kPipelineInfos) {
    if (has(info)) names.push_back(info.name);
  }
  if (names.size() < 2) return std::string(names.empty() ? "" : names.front());
  const std::string_view last = names.back();
  names.pop_back();
  return fmt::format("{} or {}", fmt::join(names, ", "), last);
}

}  // namespace shardwright
