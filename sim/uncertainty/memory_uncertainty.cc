// SPDX-License-Identifier: Apache-2.0
#include "sim/uncertainty/memory_uncertainty.h"

#include <algorithm>
#include <iterator>

#include "profiles/uncertainty/model_parallel_uncertainty.h"
#include "sim/uncertainty/conformal.h"

namespace shardwright::sim {
namespace {

constexpr std::string_view kMeasured = "stack with measured memory";

/// Each side on its own: an error to the other side counts as none.
profiles::MemoryWidths widths(const std::vector<PeakError>& errors, std::string PeakError::*cell,
                              double level) {
  std::vector<CellError> more, less;
  for (const PeakError& error : errors) {
    more.push_back({error.*cell, std::max(0.0, error.log_error)});
    less.push_back({error.*cell, std::max(0.0, -error.log_error)});
  }
  const double of_a_side = (1 + level) / 2;
  return {conformal_half_width(more, of_a_side), conformal_half_width(less, of_a_side)};
}

bool inside(const profiles::MemoryWidths& widths, const PeakError& error) {
  return error.log_error <= widths.more && error.log_error >= -widths.less;
}

/// The errors whose `name` is another.
std::vector<PeakError> without(const std::vector<PeakError>& errors, std::string PeakError::*name,
                               const std::string& left_out) {
  std::vector<PeakError> others;
  std::copy_if(errors.begin(), errors.end(), std::back_inserter(others),
               [&](const PeakError& error) { return error.*name != left_out; });
  return others;
}

}  // namespace

profiles::MemoryWidths widths_of_runs(const std::vector<PeakError>& errors, double level) {
  return widths(errors, &PeakError::id, level);
}

profiles::MemoryWidths widths_of_sources(const std::vector<PeakError>& errors, double level) {
  profiles::MemoryWidths result = widths(errors, &PeakError::source, level);
  // What is less known is never narrower.
  const profiles::MemoryWidths known = widths_of_runs(errors, level);
  return {std::max(result.more, known.more), std::max(result.less, known.less)};
}

MemoryCoverage memory_coverage(const std::vector<PeakError>& errors, double level) {
  MemoryCoverage coverage;
  for (const PeakError& error : errors) {
    ++coverage.n;
    coverage.run_out +=
        inside(widths_of_runs(without(errors, &PeakError::id, error.id), level), error);
    coverage.source_out +=
        inside(widths_of_sources(without(errors, &PeakError::source, error.source), level), error);
  }
  return coverage;
}

void add_measured_software(profiles::Uncertainty& uncertainty, const std::string& stack) {
  std::vector<std::string>& stacks = uncertainty.seen[std::string(kMeasured)];
  const auto at = std::lower_bound(stacks.begin(), stacks.end(), stack);
  if (at == stacks.end() || *at != stack) stacks.insert(at, stack);
}

profiles::MemoryWidths memory_widths(const profiles::Profile& profile) {
  const double estimated = profiles::model_parallel_uncertainty().memory_half_width;
  if (profile.stack.memory == MemoryManager::kEstimatedAllocator && estimated > 0)
    return {estimated, estimated};
  const profiles::Uncertainty& known = profile.uncertainty;
  const auto measured = known.seen.find(kMeasured);
  const bool is_measured =
      profile.stack.memory == MemoryManager::kStatic ||
      (measured != known.seen.end() && std::find(measured->second.begin(), measured->second.end(),
                                                 profile.stack.family) != measured->second.end());
  return is_measured ? known.memory : known.memory_of_others;
}

}  // namespace shardwright::sim
