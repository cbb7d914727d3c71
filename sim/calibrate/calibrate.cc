// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/calibrate.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "sim/calibrate/host_costs.h"
#include "sim/calibrate/row_time.h"
#include "sim/calibrate/rows.h"
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
  result.sharing = sharing_of(base, result.rows);
  const FitOptions fit_options{options.level, true};
  for (const CostGroup group :
       {CostGroup::kProducts, CostGroup::kAttention, CostGroup::kMemory, CostGroup::kCollectives,
        CostGroup::kHost, CostGroup::kContention}) {
    GroupFit fit = group == CostGroup::kHost
                       ? fit_host(profile, result.rows)
                       : fit_group(profile, group, targets_of(result.rows, group), result.sharing,
                                   fit_options);
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

}  // namespace shardwright::sim
