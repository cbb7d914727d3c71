// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/targets.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>

#include "sim/calibrate/row_time.h"
#include "sim/calibrate/rows.h"
#include "sim/core/base/quantile.h"

namespace shardwright::sim {
namespace {

using profiles::CostGroup;
using profiles::MeasuredRow;

constexpr double kMedianOverMean = 1.2533;  // standard error of a median over that of a mean
constexpr double kUnknownSpread = 0.1;      // where nothing was timed three times
constexpr double kBorrowed = 30;            // timings that the usual spread counts as
constexpr double kCannot = 1e6;             // seconds that stand for never
constexpr double kInstant = 1e-12;          // and for no time at all

double log_error(const RowTimes& times, const Target& target) {
  double predicted = times.seconds(target.row);
  if (target.ratio) predicted /= times.alone_s(target.row);
  // What a profile cannot do at all, such as a collective between nodes that are not linked, is as
  // wrong as can be.
  predicted = predicted < kCannot ? predicted : kCannot;
  return std::log(std::max(predicted, kInstant) / target.measured);
}

}  // namespace

std::vector<Target> targets_of(const std::vector<MeasuredRow>& rows, CostGroup group) {
  // Alone and contended rows of equal work, by what they are.
  std::map<std::string, const MeasuredRow*> alone;
  const auto name = [](const MeasuredRow& row) {
    const auto& o = row.operation;
    return fmt::format("{} {} {} {} {} {} {} {}", describe(row), o.work.dtype_bytes, o.work.kernels,
                       static_cast<int>(o.op), static_cast<int>(o.work.memory_class), o.work.causal,
                       row.lowered, o.sharers);
  };
  for (const MeasuredRow& row : rows) {
    if (row.operation.contended < kContended) alone[name(row)] = &row;
  }
  // The spread of a handful of timings says little by itself: it leans on that of all rows.
  std::vector<double> spreads;
  for (const MeasuredRow& row : rows) {
    if (row.count >= 3) spreads.push_back(row.spread);
  }
  const double usual = spreads.empty() ? kUnknownSpread : quantile(spreads, 0.5);
  const auto own_noise = [usual](const MeasuredRow& row) {
    const auto n = static_cast<double>(row.count);
    const double variance =
        (n * row.spread * row.spread + kBorrowed * usual * usual) / (n + kBorrowed);
    return kMedianOverMean * std::sqrt(variance / n);
  };
  std::vector<Target> targets;
  for (const MeasuredRow& row : rows) {
    if (!(row.operation.seconds > 0) || group_of(row) == CostGroup::kHost) continue;
    const bool contended = row.operation.contended >= kContended;
    const auto pair = contended ? alone.find(name(row)) : alone.end();
    if (group == CostGroup::kContention) {
      if (pair == alone.end()) continue;
      targets.push_back({row, row.operation.seconds / pair->second->operation.seconds, true,
                         std::hypot(own_noise(row), own_noise(*pair->second))});
    } else if (group_of(row) == group && pair == alone.end()) {
      targets.push_back({row, row.operation.seconds, false, own_noise(row)});
    }
  }
  return targets;
}

std::vector<double> log_errors(const profiles::Profile& profile, const std::vector<Target>& targets,
                               const Sharing& sharing, const std::vector<std::size_t>& which) {
  const RowTimes times(profile, sharing);
  std::vector<double> errors;
  for (const std::size_t i : which) errors.push_back(log_error(times, targets[i]));
  return errors;
}

std::vector<double> log_errors(const profiles::Profile& profile, const std::vector<Target>& targets,
                               const Sharing& sharing) {
  std::vector<std::size_t> all(targets.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return log_errors(profile, targets, sharing, all);
}

}  // namespace shardwright::sim
