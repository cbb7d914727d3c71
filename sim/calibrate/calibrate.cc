// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/calibrate.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "profiles/fields.h"
#include "sim/calibrate/fit_group.h"
#include "sim/calibrate/rows.h"
#include "sim/calibrate/stack_from_trace.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::sim {

namespace {

using profiles::CostGroup;
using profiles::MeasuredProduct;
using profiles::MeasuredRow;

constexpr std::int64_t kFewestTimings = 3;

/// Products that were timed alone, several times.
std::vector<MeasuredProduct> measured_products(const profiles::Profile& profile,
                                               const std::vector<MeasuredRow>& rows) {
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, ProductLayout, int, int>,
           MeasuredProduct>
      products;
  for (const MeasuredRow& row : rows) {
    const auto& o = row.operation;
    if (o.work.kind != WorkKind::kGemm || o.work.kernels != 1 || o.batch != 1 ||
        o.contended >= kContended) {
      continue;
    }
    const double efficiency = row.lowered ? profile.stack.gemm_efficiency : o.work.efficiency;
    MeasuredProduct& product =
        products[{o.work.m, o.work.n, o.work.k, o.work.layout, o.work.dtype_bytes, o.sharers}];
    product.m = o.work.m;
    product.n = o.work.n;
    product.k = o.work.k;
    product.layout = o.work.layout;
    product.dtype_bytes = o.work.dtype_bytes;
    product.sharers = o.sharers;
    product.seconds += static_cast<double>(row.count) * o.seconds * efficiency;
    product.count += row.count;
  }
  std::vector<MeasuredProduct> result;
  for (auto& [shape, product] : products) {
    if (product.count < kFewestTimings) continue;
    product.seconds = rounded(product.seconds / static_cast<double>(product.count), 6);
    result.push_back(product);
  }
  return result;
}

/// Rows that the base can predict, into result.rows.
void keep_predictable(const profiles::Profile& base, const std::vector<MeasuredRow>& rows,
                      CalibrationResult& result) {
  const RowTimes times(base, {});
  profiles::LeftOut unlinked{
      fmt::format("collectives between nodes, which {} does not link", base.cluster.id), 0, 0};
  for (const MeasuredRow& row : rows) {
    if (row.operation.work.kind == WorkKind::kCollective && !(times.alone_s(row) < 1e6)) {
      unlinked.count += row.count;
      unlinked.seconds += static_cast<double>(row.count) * row.operation.seconds;
      continue;
    }
    result.rows.push_back(row);
  }
  if (unlinked.count > 0) result.left_out.push_back(std::move(unlinked));
}

}  // namespace

CalibrationResult calibrate(const profiles::Profile& base, const std::vector<MeasuredRow>& rows,
                            const CalibrateOptions& options) {
  CalibrationResult result;
  keep_predictable(base, rows, result);
  EditableProfile profile(base);
  const Sharing sharing = sharing_of(base, result.rows);
  const FitOptions fit_options{options.level, true};
  for (const CostGroup group :
       {CostGroup::kProducts, CostGroup::kAttention, CostGroup::kMemory, CostGroup::kCollectives,
        CostGroup::kHost, CostGroup::kContention}) {
    GroupFit fit =
        group == CostGroup::kHost
            ? fit_host(profile, result.rows)
            : fit_group(profile, group, targets_of(result.rows, group), sharing, fit_options);
    result.groups.push_back(std::move(fit));
  }
  result.profile = profile.profile();
  result.products = measured_products(result.profile, result.rows);
  for (const MeasuredProduct& product : result.products) {
    result.profile.measured_products.push_back(product);
  }
  for (const GroupFit& fit : result.groups) {
    result.profile.calibrated_half_width[static_cast<std::size_t>(fit.group)] =
        fit.errors.half_width;
  }
  return result;
}

profiles::Calibration record_of(const CalibrationResult& result, const std::string& stack,
                                double level) {
  profiles::Calibration record;
  record.stack = stack;
  record.level = level;
  for (const GroupFit& fit : result.groups) {
    if (fit.errors.rows > 0) record.groups.push_back(fit.errors);
    for (const FittedValue& value : fit.values) {
      if (!value.determined) continue;
      record.values.push_back(
          {value.path, value.before, value.after, value.low, value.high, value.rows});
    }
  }
  record.rows = result.rows;
  return record;
}

std::vector<profiles::SetEntry> set_of(const CalibrationResult& result, const std::string& from,
                                       const std::string& date) {
  std::vector<profiles::SetEntry> set;
  for (const GroupFit& fit : result.groups) {
    for (const FittedValue& value : fit.values) {
      if (!value.determined) continue;
      const nlohmann::ordered_json entry{
          {"value", value.after},
          {"source",
           fmt::format("fitted to {}: {:.4g} to {:.4g} (95 %){}", from, value.low, value.high,
                       result.rows.empty() ? std::string()
                                           : fmt::format(", {} distinct operations", value.rows))},
          {"confidence", "medium"},
          {"date", date}};
      set.push_back({value.path, entry.dump(), "", ""});
    }
  }
  return set;
}

namespace {

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
    group.median = quantiles_of(now)[2];
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
