// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/drift.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "profiles/fields.h"
#include "sim/calibrate/fit_group.h"
#include "sim/calibrate/group_errors.h"
#include "sim/calibrate/row_time.h"
#include "sim/calibrate/rows.h"

namespace shardwright::sim {
namespace {

using profiles::CostGroup;
using profiles::MeasuredRow;

constexpr std::int64_t kFewestRows = 3;
/// Less than this is no change that a user could act on.
constexpr double kLeastChange = 0.03;

bool same_operation(const MeasuredRow& a, const MeasuredRow& b) {
  // merged() keeps apart what differs.
  return merged({a, b}).size() == 1;
}

void add_change(const char* what, const std::set<std::string>& now,
                const std::set<std::string>& then, Drift& drift) {
  if (now.empty() || then.empty()) return;
  const bool known = std::includes(then.begin(), then.end(), now.begin(), now.end());
  if (known) return;
  drift.changes.push_back(
      fmt::format("the {} is {}, not {}", what, fmt::join(now, " and "), fmt::join(then, " or ")));
}

template <typename Field>
std::set<std::string> words(const std::vector<profiles::ObservationSource>& sources, Field field) {
  std::set<std::string> result;
  for (const auto& source : sources) {
    if (!(source.*field).empty()) result.insert(source.*field);
  }
  return result;
}

}  // namespace

bool Drift::any() const {
  return !changes.empty() || std::any_of(groups.begin(), groups.end(),
                                         [](const GroupDrift& group) { return group.drifted; });
}

Drift drift_of(const profiles::Profile& profile, const profiles::Calibration& calibration,
               const std::vector<MeasuredRow>& rows,
               const std::vector<profiles::ObservationSource>& sources) {
  Drift drift;
  using Source = profiles::ObservationSource;
  add_change("GPU", words(sources, &Source::gpu), words(calibration.sources, &Source::gpu), drift);
  add_change("software", words(sources, &Source::software),
             words(calibration.sources, &Source::software), drift);
  const Sharing sharing = sharing_of(profile, calibration.rows);
  for (const profiles::CalibratedGroup& known : calibration.groups) {
    if (known.group == CostGroup::kContention || known.group == CostGroup::kHost) continue;
    const std::vector<Target> targets = targets_of(rows, known.group);
    if (targets.empty()) continue;
    GroupDrift group;
    group.group = known.group;
    group.rows = static_cast<std::int64_t>(targets.size());
    const std::vector<double> errors = log_errors(profile, targets, sharing);
    std::vector<double> now;
    for (const double error : errors) now.push_back(-error);
    group.median = quantiles_of(std::move(now))[2];
    group.low = std::min(known.quantiles.front(), -kLeastChange);
    group.high = std::max(known.quantiles.back(), kLeastChange);
    std::vector<double> changes, noises;
    for (const Target& target : targets) {
      for (const MeasuredRow& then : calibration.rows) {
        if (group_of(then) != known.group || !(then.operation.seconds > 0) ||
            !same_operation(then, target.row)) {
          continue;
        }
        changes.push_back(std::log(target.row.operation.seconds / then.operation.seconds));
        noises.push_back(std::hypot(target.row.spread, then.spread));
      }
    }
    group.same_rows = static_cast<std::int64_t>(changes.size());
    group.same_median = quantiles_of(changes)[2];
    // Runs differ by more than the timings within one: as much as single timings spread.
    group.same_allowed = std::max(kLeastChange, 2 * quantiles_of(noises)[2]);
    const bool outside =
        group.rows >= kFewestRows && (group.median < group.low || group.median > group.high);
    const bool changed =
        group.same_rows >= kFewestRows && std::abs(group.same_median) > group.same_allowed;
    group.drifted = group.same_rows >= kFewestRows ? changed : outside;
    drift.groups.push_back(group);
  }
  return drift;
}

}  // namespace shardwright::sim
